//! The statements that random programs are made of.

use super::tree::{Function, Hook, Statement};
use crate::random::Rng;

/// Numbers that every function has.
const LOCALS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Places that can be assigned to.
const PLACES: [&str; 17] = [
    "a", "a", "b", "b", "c", "d", "e", "f", "p->x", "p->y", "p->z", "p->w[2]", "p->b1", "p->b2", "p->c1", "p->wide",
    "arr[3]",
];

/// Writes one program.
pub(super) struct Writer<'r> {
    r: &'r mut Rng,
    hook: Hook,
    pub(super) count: usize,
    scope: Scope,
}

/// What the function being written has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The program: context, frame, everything.
    Main,
    /// A subprogram with the context as an argument.
    WithContext,
    /// A subprogram or callback without it.
    Plain,
}

impl<'r> Writer<'r> {
    pub(super) fn new(r: &'r mut Rng, hook: Hook) -> Writer<'r> {
        Writer { r, hook, count: 0, scope: Scope::Main }
    }

    /// All functions, the program last.
    pub(super) fn functions(&mut self) -> Vec<Function> {
        let context = self.hook.context();
        let locals = "\tu64 a = n, b = p->x, arr[4] = {};\n\tu32 c = p->y; s32 d = p->c1; u16 e = 7; s8 f = n;\n";
        let end = "\treturn a + b + c + d + e + f + arr[1] + arr[3];\n}\n\n";
        let function = |name, signature: String, first: &str, end: &str, body| Function {
            name,
            head: format!("{signature}\n{{\n{first}{locals}"),
            body,
            tail: end.into(),
        };
        let mut all = vec![];
        let callbacks = [
            ("cb_loop", "static int cb_loop(u32 n, struct S *p)".to_string(), Scope::Plain),
            (
                "cb_map",
                "static int cb_map(void *map, u32 *key, struct V *value, struct S *p)".to_string(),
                Scope::Plain,
            ),
        ];
        for (name, signature, scope) in callbacks {
            self.scope = scope;
            let body = self.block(3, 1);
            let first = if name == "cb_map" { "\tu64 n = *key + value->x;\n\tvalue->y += p->y;\n" } else { "" };
            let end = "\tp->x += a + b + c + d + e + f + arr[1] + arr[3];\n\treturn p->b1 == 5;\n}\n\n";
            all.push(function(name, signature, first, end, body));
        }
        self.scope = Scope::WithContext;
        let body = self.block(2, 1);
        let signature = format!("struct H {{ {context} *ctx; struct S *p; }};\nstatic int cb_ctx(u32 n, struct H *h)");
        let end_ctx = "\tp->x += a + b + c + d + e + f + arr[1] + arr[3];\n\treturn 0;\n}\n\n";
        all.push(function(
            "cb_ctx",
            signature,
            &format!("\tstruct S *p = h->p;\n\t{context} *ctx = h->ctx;\n"),
            end_ctx,
            body,
        ));
        self.scope = Scope::Plain;
        let body = self.block(4, 2);
        all.push(function("sub_struct", "static noinline u64 sub_struct(struct S *p, u64 n)".into(), "", end, body));
        let body = self.block(3, 1);
        all.push(function(
            "glob_struct",
            "noinline int glob_struct(struct S *p, u32 n)".into(),
            "\tif (!p)\n\t\treturn 1;\n",
            end,
            body,
        ));
        self.scope = Scope::WithContext;
        let body = self.block(3, 2);
        let signature = format!("static noinline u64 sub_ctx({context} *ctx, struct S *p, u64 n)");
        all.push(function("sub_ctx", signature, "", end, body));
        if self.hook != Hook::RawTracepoint {
            let body = self.block(3, 1);
            let first = "\tstruct S local = {}, *p = &local;\n";
            all.push(function("glob_ctx", format!("noinline int glob_ctx({context} *ctx, u32 n)"), first, end, body));
        }
        self.scope = Scope::Main;
        let body = self.block(9, 2);
        all.push(self.main(body));
        all
    }

    fn main(&mut self, body: Vec<Statement>) -> Function {
        let context = self.hook.context();
        let first = match self.hook {
            Hook::Xdp => "\tn = ctx->data_end - ctx->data;\n",
            Hook::Tc => "\tn = ctx->len + ((u64)ctx->mark << 32);\n",
            Hook::RawTracepoint => "\tn = ctx[0];\n",
        };
        let packet = match self.hook {
            Hook::RawTracepoint => "\ta ^= ctx[1];\n",
            _ => {
                "\tvoid *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;\n\
                  \tif (data + 14 <= data_end) {\n\t\tb ^= *(u32 *)(data + 2);\n\t\td ^= *(u16 *)(data + 12);\n\t}\n"
            }
        };
        let head = format!(
            "SEC(\"{}\") int generated({context} *ctx)\n{{\n\tstruct S s = {{}}, *p = &s;\n\tu64 n;\n{first}\
             \tu64 a = n, b = n >> 3, arr[4] = {{}};\n\tu32 c = n; s32 d = n; u16 e = n; s8 f = n;\n{packet}",
            self.hook.section()
        );
        let tail = "\tu32 out_key = 1;\n\tu64 out = a + b * 3 + c * 5 + d * 7 + e * 11 + f * 13 + arr[1] + arr[3]\n\
             \t\t+ s.x + s.y + s.z + s.w[2] + s.b1 + s.b2 + s.b3 + s.c1 + s.wide;\n\
             \tbpf_map_update_elem(&m_out, &out_key, &out, 0);\n\treturn out ^ (out >> 32);\n}\n";
        Function { name: "generated", head, body, tail: tail.into() }
    }

    fn block(&mut self, most: u64, depth: u32) -> Vec<Statement> {
        let n = 1 + self.r.below(most);
        (0..n).map(|_| self.statement(depth)).collect()
    }

    fn line(&mut self, head: impl Into<String>) -> Statement {
        self.nested(head, vec![], "")
    }

    fn nested(&mut self, head: impl Into<String>, body: Vec<Statement>, tail: &str) -> Statement {
        self.count += 1;
        Statement { number: self.count - 1, head: head.into(), body, tail: tail.into() }
    }

    fn statement(&mut self, depth: u32) -> Statement {
        let context = self.scope != Scope::Plain;
        match self.r.below(26) {
            0..=4 => self.assign(),
            5 | 6 if depth > 0 => self.condition(depth),
            7 if depth > 0 => self.repeat(depth),
            8 if depth > 0 => self.switch(depth),
            9 => self.assembly(),
            10 | 11 => self.map(),
            12 => self.queue(),
            13 => self.ring(),
            14 => self.lock_or_timer(),
            15 => self.dynptr(),
            16 | 17 => self.probe(),
            18 => self.shared(),
            19 => self.builtin(),
            20 => self.globals(),
            21 if context => self.context(),
            22 if context => self.packet(),
            23 => self.text_helper(),
            24 | 25 if self.scope == Scope::Main => self.call(),
            _ => self.assign(),
        }
    }

    // ---- expressions -----------------------------------------------------------------------------------------------

    fn constant(&mut self) -> String {
        let n = self.r.number(64);
        if self.r.chance(2) { format!("{}", n % 64) } else { format!("{n:#x}ULL") }
    }

    fn value(&mut self) -> String {
        match self.r.below(8) {
            0..=3 => self.r.one_of(&LOCALS).into(),
            4 | 5 => self.r.one_of(&PLACES).into(),
            6 => format!("arr[{} & 3]", self.r.one_of(&LOCALS)),
            _ => self.constant(),
        }
    }

    fn expr(&mut self, depth: u32) -> String {
        if depth == 0 || self.r.chance(4) {
            return self.value();
        }
        let (x, y) = (self.expr(depth - 1), self.expr(depth - 1));
        match self.r.below(16) {
            0..=5 => format!("({x} {} {y})", self.r.one_of(&["+", "-", "*", "&", "|", "^"])),
            6 => format!("((u64)({x}) {} ({y} & 63))", self.r.one_of(&["<<", ">>"])),
            7 => format!("((u32)({x}) {} ({y} & 31))", self.r.one_of(&["<<", ">>"])),
            8 => format!("((s64)({x}) >> ({y} & 63))"),
            9 => format!("((u64)({x}) {} (u64)({y}))", self.r.one_of(&["/", "%"])),
            10 => format!("((u32)({x}) {} ((u32)({y}) | 1))", self.r.one_of(&["/", "%"])),
            11 => format!("({})({x})", self.r.one_of(&["u8", "s8", "u16", "s16", "u32", "s32", "s64"])),
            12 => format!("({} ? {x} : {y})", self.test()),
            13 => format!("{}({x})", self.r.one_of(&["__builtin_bswap16", "__builtin_bswap32", "__builtin_bswap64"])),
            14 => format!("(u64)({}{x})", self.r.one_of(&["-", "~", "!"])),
            _ => self.test(),
        }
    }

    fn test(&mut self) -> String {
        let (x, y) = (self.value(), self.value());
        let cast = self.r.one_of(&["(u64)", "(s64)", "(u32)", "(s32)", "(u8)"]);
        format!("({cast}({x}) {} {cast}({y}))", self.r.one_of(&["==", "!=", "<", "<=", ">", ">="]))
    }

    // ---- statements ------------------------------------------------------------------------------------------------

    fn assign(&mut self) -> Statement {
        let (to, op, value) =
            (self.r.one_of(&PLACES), self.r.one_of(&["=", "=", "+=", "^=", "-=", "|="]), self.expr(2));
        self.line(format!("{to} {op} {value};"))
    }

    fn condition(&mut self, depth: u32) -> Statement {
        let test = self.test();
        let mut body = self.block(3, depth - 1);
        if self.r.chance(2) {
            let other = self.block(2, depth - 1);
            let otherwise = self.nested("} else {", other, "");
            body.push(otherwise);
        }
        self.nested(format!("if ({test}) {{"), body, "}")
    }

    fn repeat(&mut self, depth: u32) -> Statement {
        let n = 1 + self.r.below(9);
        let unroll = self.r.one_of(&["", "#pragma unroll\n", "#pragma clang loop unroll(disable)\n"]);
        let mut body = self.block(2, depth - 1);
        let value = self.expr(1);
        let step = self.line(format!("arr[i & 3] += {value} + i;"));
        body.push(step);
        if self.r.chance(3) {
            let test = self.test();
            let stop = self.line(format!("if ({test}) break;"));
            body.push(stop);
        }
        self.nested(format!("{unroll}for (u32 i = 0; i < {n}; i++) {{"), body, "}")
    }

    fn switch(&mut self, depth: u32) -> Statement {
        let on = self.expr(1);
        let mask = self.r.one_of(&[3, 7]);
        let cases = (0..=mask).step_by(1 + self.r.below(2) as usize);
        let body = cases
            .map(|n| {
                let body = self.block(1, depth - 1);
                let end = self.r.one_of(&["break;", "break;", ""]);
                self.nested(format!("case {n}:"), body, end)
            })
            .collect();
        self.nested(format!("switch (({on}) & {mask}) {{"), body, "default: a++;\n}")
    }

    fn assembly(&mut self) -> Statement {
        let x = self.r.one_of(&["a", "b"]);
        let text = match self.r.below(6) {
            0 => format!("asm volatile(\"\" : \"+r\"({x}));"),
            1 => "asm volatile(\"\" ::: \"memory\");".into(),
            2 => format!("asm volatile(\"%0 += %1\" : \"+r\"({x}) : \"r\"((u64)c));"),
            3 => format!("asm volatile(\"%0 <<= 32; %0 >>= 32\" : \"+r\"({x}));"),
            4 => format!("asm volatile(\"if %0 > %1 goto +1; %0 = %1\" : \"+r\"({x}) : \"r\"((u64)e));"),
            _ => format!(
                "asm volatile(\"*(u64 *)(%1 + 0) = %0; %0 = *(u32 *)(%1 + 0)\" : \"+r\"({x}) : \"r\"(&arr[2]) : \"memory\");"
            ),
        };
        self.line(text)
    }

    fn map(&mut self) -> Statement {
        let map = self.r.one_of(&["m_array", "m_hash", "m_percpu", "m_array", "m_hash"]);
        let (key, value, other) = (self.expr(1), self.expr(1), self.value());
        let inner = match self.r.below(6) {
            0 => format!("v->x = {value};\na ^= v->y;"),
            1 => format!("v->y += {value};\nv->bytes[{} & 15] ^= 1;\nc += v->bytes[3];", self.value()),
            2 => format!("b += __sync_fetch_and_add(&v->x, {value});"),
            3 => format!("__sync_fetch_and_add(&v->y, {other});\na += v->y;"),
            4 => format!("*v = (struct V){{ .x = {value}, .seq = {other} }};"),
            _ => format!("struct V copy = *v;\ncopy.x ^= {value};\n__builtin_memcpy(v, &copy, sizeof(copy));"),
        };
        let text = match self.r.below(5) {
            0 => format!(
                "{{ u32 k = ({key}) & 7; struct V v = {{ .x = {value}, .y = {other} }};\n\
                 a += bpf_map_update_elem(&{map}, &k, &v, {}); }}",
                self.r.below(3)
            ),
            1 => format!("{{ u32 k = ({key}) & 7;\na += bpf_map_delete_elem(&m_hash, &k); }}"),
            2 => format!(
                "{{ u32 k = ({key}) & 31; u64 v = {value}, *w;\nbpf_map_update_elem(&m_lru, &k, &v, 0);\n\
                 w = bpf_map_lookup_elem(&m_lru, &k);\nif (w) b ^= *w; }}"
            ),
            _ => format!(
                "{{ u32 k = ({key}) & 3; struct V *v = bpf_map_lookup_elem(&{map}, &k);\nif (v) {{\n{inner}\n}} }}"
            ),
        };
        self.line(text)
    }

    fn queue(&mut self) -> Statement {
        let (map, value) = (self.r.one_of(&["m_queue", "m_stack"]), self.expr(1));
        let take = self.r.one_of(&["pop", "peek", "pop"]);
        self.line(format!(
            "{{ u64 v = {value}, w = 1;\na += bpf_map_push_elem(&{map}, &v, 2);\n\
             b += bpf_map_{take}_elem(&{map}, &w);\na ^= w; }}"
        ))
    }

    fn ring(&mut self) -> Statement {
        let (value, len) = (self.expr(1), self.value());
        let fill = match self.r.below(4) {
            0 => format!("v->x = {value};"),
            1 => format!("v->x = {value};\nbpf_probe_read_kernel(v, (({len}) & 15) + 1, p);\nb ^= v->x;"),
            2 => format!("v->y = {value};\nbpf_probe_read_kernel(v, sizeof(*v), arr);\nb ^= v->y;"),
            _ => format!("*v = (struct V){{}};\nv->bytes[{} & 15] = {value};\nb += v->bytes[1];", self.value()),
        };
        if self.r.chance(4) {
            return self.line(format!("a += bpf_ringbuf_output(&m_ring, arr, 8 * (({len}) & 3) + 8, 0);"));
        }
        let end = self.r.one_of(&["submit", "discard", "discard"]);
        self.line(format!(
            "{{ struct V *v = bpf_ringbuf_reserve(&m_ring, sizeof(*v), 0);\nif (v) {{\n{fill}\nbpf_ringbuf_{end}(v, 0);\n}} }}"
        ))
    }

    fn lock_or_timer(&mut self) -> Statement {
        let value = self.expr(1);
        // Timers are not for tracing programs.
        if self.hook == Hook::RawTracepoint {
            return self.assign();
        }
        match self.r.below(3) {
            0 if self.scope == Scope::Main => self.line(
                "{ u32 k = 0; struct T *t = bpf_map_lookup_elem(&m_timer, &k);\nif (t) {\nt->n++;\n\
                 b += bpf_timer_init(&t->timer, &m_timer, 1) == 0;\nbpf_timer_cancel(&t->timer);\nc += t->n;\n} }",
            ),
            _ => self.line(format!(
                "{{ u32 k = a & 1; struct L *l = bpf_map_lookup_elem(&m_locked, &k);\nif (l) {{\n\
                 u64 v = {value};\nu32 m = l->n;\nbpf_spin_lock(&l->lock);\nl->sum += v;\nl->n = l->n + 1;\nv = l->sum;\n\
                 bpf_spin_unlock(&l->lock);\na ^= v + l->n - m;\n}} }}"
            )),
        }
    }

    fn dynptr(&mut self) -> Statement {
        let (value, at) = (self.expr(1), self.value());
        if self.scope != Scope::Main {
            return self.assign();
        }
        self.line(format!(
            "{{ u32 k = 1; struct V *v = bpf_map_lookup_elem(&m_array, &k); struct bpf_dynptr dp; u64 t = {value};\nif (v) {{\n\
             bpf_dynptr_from_mem(v, sizeof(*v), 0, &dp);\na += bpf_dynptr_write(&dp, ({at}) & 31, &t, 8, 0);\n\
             b += bpf_dynptr_read(&t, 8, &dp, ({at}) & 15, 0);\na ^= t;\nu32 *q = bpf_dynptr_data(&dp, 4, 4);\n\
             if (q) c ^= *q;\n}} }}"
        ))
    }

    /// Reading through addresses, of the frame too, that went through memory, helpers and maps.
    fn probe(&mut self) -> Statement {
        let value = self.expr(1);
        let slot = self.r.below(4);
        let (load, store) = match self.hook {
            Hook::Xdp => ("bpf_xdp_load_bytes(ctx, 0, &q, 8)", "bpf_xdp_store_bytes(ctx, 0, &t, 8)"),
            _ => ("bpf_skb_load_bytes(ctx, 0, &q, 8)", "bpf_skb_store_bytes(ctx, 0, &t, 8, 0)"),
        };
        let packet = self.scope == Scope::Main && self.hook != Hook::RawTracepoint;
        let end = "u64 w = 0;\nbpf_probe_read_kernel(&w, 8, (void *)q);\na ^= w;";
        let text = match self.r.below(10) {
            0 => format!(
                "{{ u64 t = 0;\narr[{slot}] = {value};\nbpf_probe_read_kernel(&t, 8, &arr[{slot}]);\na ^= t; }}"
            ),
            1 => format!("{{ u64 v = {value}; void *t = &v; u64 q = 0;\nbpf_probe_read_kernel(&q, 8, &t);\n{end} }}"),
            2 => format!(
                "{{ u64 v = {value}; u64 q = 0;\np->ptr = &v;\nbpf_probe_read_kernel(&q, 8, &p->ptr);\n{end}\np->ptr = 0; }}"
            ),
            3 => format!(
                "{{ u64 v = {value}; u64 t = (u64)&v, q = 0, *m; u32 k = 0;\nbpf_map_update_elem(&m_scratch, &k, &t, 0);\n\
                 m = bpf_map_lookup_elem(&m_scratch, &k);\nif (m) {{ q = *m; *m = 0; }}\n{end} }}"
            ),
            4 => format!(
                "{{ u64 v = {value}; u64 t = (u64)&v, q = 0;\nif (!bpf_map_push_elem(&m_stack, &t, 2))\n\
                 \tbpf_map_pop_elem(&m_stack, &q);\n{end} }}"
            ),
            5 if packet => format!(
                "{{ u64 v = {value}; u64 old = 0, t = (u64)&v, q = 0;\n{};\n{store};\n{load};\n{end}\nt = old;\n{store}; }}",
                load.replace("&q", "&old")
            ),
            6 if self.scope == Scope::Main && self.hook == Hook::Tc => format!(
                "{{ u64 v = {value}, q = 0;\nif (!bpf_skb_set_tstamp(ctx, (u64)&v, 1)) {{\nq = ctx->tstamp;\nctx->tstamp = 5;\n{end}\n}} }}"
            ),
            7 => format!(
                "{{ struct {{ u64 v; void *at; }} t = {{ {value} }}, q = {{}};\nt.at = &t.v;\n\
                 bpf_probe_read_kernel(&q, sizeof(q), &t);\nu64 w = 0;\nbpf_probe_read_kernel(&w, 8, q.at);\na ^= w + q.v; }}"
            ),
            8 => format!(
                "{{ struct S t = *p;\nt.x ^= {value};\nbpf_probe_read_kernel(p, ({} & 31) + 1, &t); }}",
                self.value()
            ),
            _ => format!(
                "{{ struct S t = {{}};\nt.wide = {value};\nt.c1 = a;\na += bpf_probe_read_kernel(&t.x, 8, p);\nb ^= t.x + t.wide + t.c1; }}"
            ),
        };
        self.line(text)
    }

    /// Reads of what others may write: seqlocks, flags.
    fn shared(&mut self) -> Statement {
        let value = self.value();
        let text = match self.r.below(3) {
            0 => "{ u32 k = 0; struct V *v = bpf_map_lookup_elem(&m_array, &k);\nif (v) {\n\
                  u32 s1 = READ_ONCE(v->seq);\nu64 x = v->x, y = v->y;\nbpf_get_smp_processor_id();\n\
                  if (READ_ONCE(v->seq) == s1) a += x ^ y;\n} }"
                .to_string(),
            1 => format!(
                "{{ u32 s1 = READ_ONCE(g_struct.seq);\nu64 x = g_struct.x;\ng_struct.y = {value};\nif (READ_ONCE(g_struct.seq) != s1) x = 0;\nb += x; }}"
            ),
            _ => "for (u32 i = 0; i < 5; i++) {\n\tif (READ_ONCE(g_flag)) { a++; break; }\n}".to_string(),
        };
        self.line(text)
    }

    fn builtin(&mut self) -> Statement {
        let value = self.value();
        let text = match self.r.below(4) {
            0 => format!("__builtin_memset(arr, {} & 255, sizeof(arr));", self.r.below(256)),
            1 => "__builtin_memcpy(p->w, arr, 6);".into(),
            2 => format!(
                "{{ u32 t[4] = {{ {value}, 1, a, b }};\n__builtin_memcpy(arr, t, 16);\nc += t[{} & 3]; }}",
                self.value()
            ),
            _ => format!("{{ u8 t[16] = {{}};\nt[{value} & 15] = 9;\nt[3] += a;\nb += t[5] + *(u16 *)&t[2]; }}"),
        };
        self.line(text)
    }

    fn globals(&mut self) -> Statement {
        let value = self.expr(1);
        let text = match self.r.below(6) {
            0 => format!("g_data += {value};\na ^= g_data;"),
            1 => format!("g_bss[({value}) & 7] += a;\nc ^= g_bss[2];"),
            2 => format!("g_flag = ({value}) & 1;"),
            3 => "b += g_config;".into(),
            4 => format!("a += g_table[({value}) & 7];"),
            _ => format!("g_struct.bytes[({value}) & 15] = a;\ng_struct.x ^= b;"),
        };
        self.line(text)
    }

    fn context(&mut self) -> Statement {
        let value = self.expr(1);
        let text = match self.hook {
            Hook::Xdp => {
                let field = self.r.one_of(&["rx_queue_index", "ingress_ifindex"]);
                format!("a += ctx->{field} & 255;\nb ^= ctx->data_end - ctx->data;")
            }
            Hook::Tc => {
                let field =
                    self.r.one_of(&["mark", "priority", "tc_index", "cb[1]", "cb[3]", "queue_mapping", "tc_classid"]);
                let read =
                    self.r.one_of(&["len", "protocol", "pkt_type", "vlan_tci", "ifindex", "hash", "mark", "cb[0]"]);
                match self.r.below(5) {
                    0 => format!("ctx->{field} = {value};\na += ctx->{field};"),
                    1 => format!("a ^= ctx->{read};\nctx->{field} = {value};"),
                    2 => format!("b += (u8)ctx->{read} + (u16)(ctx->{read} >> 8);"),
                    3 => "ctx->tstamp = ctx->tstamp + 1;\nb += ctx->tstamp;".into(),
                    _ => "a += ctx->tstamp_type;\nctx->tstamp = 0;".into(),
                }
            }
            Hook::RawTracepoint => format!("a += ctx[{}];\nc ^= (u16)ctx[2];", self.r.below(4)),
        };
        self.line(text)
    }

    fn packet(&mut self) -> Statement {
        let value = self.expr(1);
        let at = self.r.below(40);
        let access = match self.r.below(6) {
            0 => "a ^= *(u32 *)at;".into(),
            1 => format!("*(u16 *)at = {value};"),
            2 => "*(u32 *)at = __builtin_bswap32(*(u32 *)(at + 4));".into(),
            3 => format!("at[{}] += {value};", self.r.below(8)),
            4 => "for (u32 j = 0; j < 8; j++) a = a * 31 + at[j];".into(),
            _ => "b += (at[0] << 8) | at[1];\n*(u8 *)at = a;".into(),
        };
        let checksum = self.r.chance(4);
        match self.hook {
            Hook::RawTracepoint => self.assign(),
            _ if checksum => self.line("a += bpf_csum_diff(0, 0, arr, 16, b & 0xffff);"),
            _ => self.line(format!(
                "{{ u8 *at = (u8 *)(long)ctx->data + {at};\nif (at + 8 <= (u8 *)(long)ctx->data_end) {{\n{access}\n}} }}"
            )),
        }
    }

    fn text_helper(&mut self) -> Statement {
        let value = self.value();
        let text = match self.r.below(3) {
            0 => format!(
                "{{ char t[24] = {{}}; u64 args[2] = {{ {value}, a }}; static const char fmt[] = \"%d %llx\";\n\
                 b += bpf_snprintf(t, sizeof(t), fmt, args, sizeof(args));\na += t[0] + t[5]; }}"
            ),
            1 => format!(
                "{{ char t[8] = {{ '0' + ({value} & 7), '4' }}; unsigned long v = 0;\nb += bpf_strtoul(t, 8, 0, &v);\na += v; }}"
            ),
            _ => "{ static const char t[] = \"abc\"; char u[4] = { 'a', 'b' + (a & 1) };\nb += bpf_strncmp(u, 4, t); }"
                .into(),
        };
        self.line(text)
    }

    fn call(&mut self) -> Statement {
        let (value, n) = (self.expr(1), 1 + self.r.below(4));
        let context = self.hook.context();
        let text = match self.r.below(9) {
            0 => format!("a += sub_struct(p, {value});"),
            1 => format!("{{ struct S t = {{ .x = {value}, .b2 = b }};\na += sub_struct(&t, 3);\nb ^= t.x + t.b2; }}"),
            2 => format!("a ^= glob_struct(p, {value});"),
            3 => format!("a += sub_ctx(ctx, p, {value});"),
            4 if self.hook != Hook::RawTracepoint => format!("b += glob_ctx(ctx, {value});"),
            5 => format!("a += bpf_loop({n}, cb_loop, p, 0);"),
            6 => format!("{{ struct H h = {{ ({context} *)ctx, p }};\na += bpf_loop({n}, cb_ctx, &h, 0); }}"),
            7 => format!("a += bpf_for_each_map_elem(&{}, cb_map, p, 0);", self.r.one_of(&["m_array", "m_hash"])),
            _ => "bpf_tail_call(ctx, &m_calls, a & 1);".into(),
        };
        self.line(text)
    }
}
