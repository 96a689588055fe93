"use strict";
// Draws the report from the data in the page: the table of functions, and the one that is looked at (#NUMBER/TAB).
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const CHUNK = 200;   // rows that the browser lays out at a time
  const CHANGES = 300; // changes that are shown at first

  // An element with text or children.
  function el(name, attributes, ...children) {
    const e = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) e.setAttribute(key, value);
    }
    e.append(...children.filter(c => c !== null && c !== undefined));
    return e;
  }
  const SVG = "http://www.w3.org/2000/svg";
  function svg(name, attributes, ...children) {
    const e = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes || {})) e.setAttribute(key, value);
    e.append(...children);
    return e;
  }

  const count = n => n.toLocaleString("en");
  const percent = (before, after) =>
    before === 0 || before === after ? "0 %" : `${after < before ? "−" : "+"}${Math.abs(100 * (before - after) / before).toFixed(1)} %`;
  const sum = of => data.functions.reduce((s, f) => s + of(f), 0);
  const seconds = s => s < 0.0995 ? `${(1000 * s).toFixed(0)} ms` : `${s.toFixed(2)} s`;

  function head() {
    const [before, after] = [sum(f => f.slots[0]), sum(f => f.slots[1])];
    const judged = data.functions.filter(f => f.verified[0] !== null && f.verified[1] !== null);
    const verified = [0, 1].map(i => judged.reduce((s, f) => s + f.verified[i], 0));
    const tile = (what, value, note) => el("div", { class: "tile" }, el("span", { class: "dim" }, what), el("b", {}, value), el("span", { class: "dim" }, note));
    const title = `${data.input} → ${data.output}`;
    document.title = `bpf-opt: ${title}`;
    document.getElementById("head").append(
      el("h1", {}, title),
      el("p", { class: "dim" }, `bpf-opt ${data.version}, goal ${data.goal}, seed ${data.seed}` + (data.kernel ? `, Linux ${data.kernel}` : "")),
      el("div", { class: "tiles" },
        tile("instruction slots", percent(before, after), `${count(before)} → ${count(after)}`),
        judged.length ? tile("verified instructions", percent(...verified), `${count(verified[0])} → ${count(verified[1])}`) : null,
        tile("functions changed", `${data.functions.filter(f => f.code).length} of ${data.functions.length}`, `${count(sum(f => f.proofs))} proofs`),
        tile("time", seconds(data.seconds), data.search ? `${seconds(data.search.seconds)} of search` : "no search")),
      ...data.remarks.map(r => el("p", { class: r.startsWith("warning") ? "bad" : "dim" }, r)));
    if (data.search) document.getElementById("head").append(search(data.search));
    if (data.forms.some(f => f.time_ratio !== null)) document.getElementById("head").append(forms());
    if (data.taken_back.length) document.getElementById("head").append(takenBack());
  }

  function search(s) {
    const rows = [
      ["rounds", `${count(s.rounds)}; ended: ${s.ended}`], ["windows looked at", count(s.windows)], ["improved", count(s.improved)],
      ["by the enumerator, a chain, a remembered rule", [s.by_enumerator, s.by_chain, s.by_rule].map(count).join(", ")],
      ["shown to be as short as can be", count(s.settled)], ["candidates that chains tried", count(s.proposals)],
      ["candidates that went to the prover", count(s.judged)], ["time", seconds(s.seconds)],
    ];
    return el("details", {}, el("summary", {}, "What the search did"),
      el("div", { class: "scroll" }, el("table", {}, ...rows.map(([a, b]) => el("tr", {}, el("td", {}, a), el("td", { class: "words" }, b))))));
  }

  const CALL = { faster: "faster", slower: "slower", noise: "no difference beyond noise" };

  // The forms that were timed beside the original, the best first.
  function forms() {
    const rows = data.forms.map((f, i) => el("tr", {},
      el("td", {}, f.output || `form ${i + 1}, not written`), el("td", {}, count(f.slots)),
      el("td", {}, f.time_ratio === null ? "not timed" : `${(100 * f.time_ratio).toFixed(1)} %`),
      el("td", { class: f.time_call === "faster" ? "words good" : f.time_call === "slower" ? "words bad" : "words" }, CALL[f.time_call] || "")));
    const titles = el("tr", {}, el("th", {}, "form"), el("th", {}, "slots"), el("th", {}, "of the original's time"), el("th", { class: "words" }, "what is to be believed"));
    return el("details", { id: "forms", open: "" }, el("summary", {}, `Forms that were timed: ${data.forms.length}`),
      el("div", { class: "scroll" }, el("table", {}, el("thead", {}, titles), el("tbody", {}, ...rows))));
  }

  function takenBack() {
    const rows = data.taken_back.map(t => el("tr", {}, el("td", {}, t.function), el("td", { class: "words" }, t.change || "a change"), el("td", { class: "words" }, t.reason)));
    return el("details", {}, el("summary", {}, `Taken back: ${data.taken_back.length}`), el("div", { class: "scroll" }, el("table", {}, ...rows)));
  }

  const COLUMNS = [
    ["function", f => f.name], ["section", f => f.section], ["slots", f => f.slots[0]], ["after", f => f.slots[1]],
    ["saved", f => f.slots[0] - f.slots[1]], ["verified", f => f.verified[0] ?? -1], ["after ", f => f.verified[1] ?? -1],
    ["est. ns", f => f.estimated ? f.estimated[0] : -1], ["after  ", f => f.estimated ? f.estimated[1] : -1],
    ["proofs", f => f.proofs], ["time", f => f.seconds], ["kernel", f => f.kernel || f.untouched || ""],
  ];
  const order = { by: null, down: true };
  let wanted = "";

  function overview() {
    const body = el("tbody");
    const fill = () => {
      let rows = data.functions.map((f, i) => [f, i]).filter(([f]) => (f.name + " " + f.section).toLowerCase().includes(wanted));
      if (order.by !== null) {
        const key = COLUMNS[order.by][1];
        const compare = (a, b) => typeof a === "number" ? a - b : String(a).localeCompare(String(b));
        rows.sort(([a], [b]) => (order.down ? -1 : 1) * compare(key(a), key(b)));
      }
      const shown = location.hash.slice(1).split("/")[0];
      body.replaceChildren(...rows.map(([f, i]) => {
        const number = x => x === null ? "–" : count(x);
        const ns = i => f.estimated ? f.estimated[i].toFixed(1) : "–";
        return el("tr", { class: String(i) === shown ? "here" : null },
          el("td", {}, el("a", { href: `#${i}/code` }, f.name)), el("td", { class: "words" }, f.section),
          ...f.slots.map(n => el("td", {}, count(n))), el("td", { class: f.slots[1] < f.slots[0] ? "good" : null }, percent(...f.slots)),
          ...f.verified.map(n => el("td", {}, number(n))), el("td", {}, ns(0)), el("td", {}, ns(1)),
          el("td", {}, count(f.proofs)), el("td", {}, seconds(f.seconds)),
          el("td", { class: "words" }, f.untouched ? `left as it was: ${f.untouched}` : f.kernel || "not asked"));
      }));
    };
    const sort = i => () => { order.down = order.by === i ? !order.down : true; order.by = i; fill(); };
    const section = document.getElementById("overview");
    const titles = COLUMNS.map(([name], i) => el("th", { class: i === 1 || i === 11 ? "words" : null }, el("button", { onclick: sort(i), title: "sort" }, name)));
    section.append(el("h2", {}, "Functions"));
    if (data.functions.length > 8) section.append(el("input", { type: "search", placeholder: "name or section", "aria-label": "name or section", oninput: e => { wanted = e.target.value.toLowerCase(); fill(); } }));
    section.append(el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...titles)), body)));
    fill();
    addEventListener("hashchange", fill);
  }

  // The source line of each line of a listing: what was told last.
  function sources(f, listing) {
    let last = null;
    return listing.map(([, , told]) => {
      if (told) last = `${f.files[told[0]]}:${told[1]}` + (told[2] ? ` | ${told[2]}` : "");
      return last;
    });
  }

  function code(f, all) {
    const c = f.code;
    const source = c.listings.map(l => sources(f, l));
    const box = el("div", { class: "code" });
    let chunk = null, inChunk = 0, told = null, left = 0;
    const add = e => {
      if (!chunk || inChunk >= CHUNK) { chunk = el("div", { class: "chunk", style: `contain-intrinsic-size: auto ${CHUNK * 17}px` }); box.append(chunk); inChunk = 0; }
      chunk.append(e);
      inChunk++;
    };
    const skip = () => { if (left) add(el("div", { class: "skip" }, `… ${count(left)} unchanged`)); left = 0; };
    const side = line => line ? el("span", {}, el("span", { class: "slot" }, `${String(line[0]).padStart(4)}: `), line[1]) : el("span");
    const CLASS = { " ": "row same", "~": "row same", "|": "row both", "<": "row gone", ">": "row new" };
    c.blocks.forEach(([start, changed], n) => {
      const end = n + 1 < c.blocks.length ? c.blocks[n + 1][0] : c.rows.length;
      if (!all && !changed) { left += end - start; return; }
      skip();
      for (let i = start; i < end; i++) {
        const [mark, l, r] = c.rows[i];
        const here = l >= 0 ? source[0][l] : source[1][r];
        if (here && here !== told) { add(el("div", { class: "source" }, here)); told = here; }
        add(el("div", { class: CLASS[mark] }, side(c.listings[0][l]), el("i", {}, mark), side(c.listings[1][r])));
      }
    });
    skip();
    return box;
  }

  const PROOF = { terms: "both sides became the same terms", solver: "solver", remembered: "proven before", blocks: "block by block", whole: "as a whole function" };

  function changes(f) {
    if (!f.changes.length) return el("p", { class: "dim" }, f.twin_of ? `The same as ${f.twin_of}, whose changes these are.` : "No change.");
    const box = el("div");
    const show = from => {
      for (const c of f.changes.slice(from, from + CHANGES)) {
        const time = c.proof.milliseconds === null ? "" : `, ${c.proof.milliseconds.toFixed(2)} ms`;
        const lines = (sign, lines) => lines.map(l => el("div", { class: sign === "-" ? "minus" : "plus" }, `${sign} ${l}`));
        box.append(el("div", { class: "change" }, el("b", {}, c.by),
          c.saved ? ` ${c.saved > 0 ? "−" : "+"}${Math.abs(c.saved)} ${Math.abs(c.saved) === 1 ? "slot" : "slots"}` : "",
          el("span", { class: "dim" }, `${c.slot === null ? "" : `, slot ${c.slot}`}${c.line ? ` (${c.line})` : ""}; proof: ${PROOF[c.proof.by]}${time}`),
          c.before.length + c.after.length ? el("pre", {}, ...lines("-", c.before), ...lines("+", c.after)) : null));
      }
      const rest = f.changes.length - from - CHANGES;
      if (rest > 0) {
        const more = el("button", { onclick: () => { more.remove(); show(from + CHANGES); } }, `${count(rest)} more`);
        box.append(more);
      }
    };
    show(0);
    return box;
  }

  function graph(g, listing, label) {
    const box = el("div", { class: "graph", tabindex: "0", role: "img", "aria-label": `control-flow graph ${label}` });
    if (g.why_not) { box.append(el("p", { class: "dim" }, `no graph: ${g.why_not}`)); return box; }
    const id = `arrow-${label}`;
    const picture = svg("svg", { width: Math.ceil(g.width), height: Math.ceil(g.height) },
      svg("defs", {}, svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" }, svg("path", { d: "M0,0L8,4L0,8Z" }))));
    for (const [a, b, how] of g.edges) {
      const [from, to] = [g.nodes[a], g.nodes[b]];
      // What is not taken leaves to the left.
      const x1 = from.x + from.w * (how === "n" ? 0.35 : how === "y" ? 0.65 : 0.5), y1 = from.y + from.h;
      const x2 = to.x + to.w / 2, y2 = to.y;
      let d;
      if (g.column && b !== a + 1) {
        const reach = Math.min(11, 1 + Math.log2(Math.abs(b - a) + 1)) * 24;
        const [s, t] = [from.y + from.h / 2, to.y + to.h / 2];
        d = `M${from.x + from.w},${s}C${from.x + from.w + reach},${s} ${to.x + to.w + reach},${t} ${to.x + to.w},${t}`;
      } else if (y2 > y1 - 1) {
        const m = Math.max(12, (y2 - y1) / 2);
        d = `M${x1},${y1}C${x1},${y1 + m} ${x2},${y2 - m} ${x2},${y2}`;
      } else {
        // Backwards: around the right side.
        const side = Math.max(from.x + from.w, to.x + to.w) + 18;
        d = `M${x1},${y1}C${x1},${y1 + 24} ${side},${y1 + 24} ${side},${(y1 + y2) / 2}S${x2},${y2 - 24} ${x2},${y2}`;
      }
      picture.append(svg("path", { d, class: how, "marker-end": `url(#${id})` }));
    }
    for (const n of g.nodes) {
      const texts = n.lines.map((l, i) => {
        const [slot, text] = listing[l];
        const line = `${slot}: ${text}`;
        return svg("text", { x: n.x + 8, y: n.y + 18 + 13 * i }, line.length > 43 ? `${line.slice(0, 42)}…` : line);
      });
      if (n.count > n.lines.length) texts.push(svg("text", { x: n.x + 8, y: n.y + 18 + 13 * n.lines.length }, `… ${n.count - n.lines.length} more`));
      if (!n.count) texts.push(svg("text", { x: n.x + 8, y: n.y + 18 }, "goto"));
      picture.append(svg("g", { class: n.changed ? "changed" : "" }, svg("rect", { x: n.x, y: n.y, width: n.w, height: n.h, rx: 4 }), ...texts));
    }
    box.append(picture);
    return box;
  }

  function graphs(f) {
    const titled = (title, g, listing) => el("div", { style: "min-width:0" }, el("p", { class: "dim" }, `${title}: ${count(g.nodes.length)} blocks${g.column ? ", in the order of the code" : ""}`), graph(g, listing, title));
    return el("div", {}, el("p", { class: "dim" }, "Solid: taken, or the only way; dashed: not taken. Marked blocks have changed."),
      el("div", { class: "graphs" }, titled("before", f.code.graphs[0], f.code.listings[0]), titled("after", f.code.graphs[1], f.code.listings[1])));
  }

  function facts(f) {
    const rows = [
      ["kind", f.kind], ["kernel", f.kernel || "not asked"], ["whole function, old against new", f.whole],
      ["proofs", `${count(f.proofs)}; ${count(f.solver)} asked the solver; ${count(f.refused)} proposals refused`],
      ["time", `${seconds(f.seconds)}; as small as now after ${seconds(f.reached)}`],
      ["rewrites", f.rewrites.map(([by, n]) => n > 1 ? `${by} ×${n}` : by).join(", ") || "none"],
    ];
    if (f.twin_of) rows.unshift(["the same as", f.twin_of]);
    if (f.untouched) rows.unshift(["left as it was", f.untouched]);
    return el("div", { class: "scroll" }, el("table", {}, ...rows.map(([a, b]) => el("tr", {}, el("td", {}, a), el("td", { class: "words" }, b)))));
  }

  const TABS = { code: "Code", changes: "Changes", graph: "Graph", facts: "Facts" };
  let all = false;

  function show() {
    const [number, tab] = location.hash.slice(1).split("/");
    const section = document.getElementById("function");
    const f = number === "" ? undefined : data.functions[Number(number)];
    section.hidden = !f;
    if (!f) { section.replaceChildren(); return; }
    const chosen = TABS[tab] && (f.code || tab === "facts") ? tab : "facts";
    const tabs = el("div", { class: "tabs", role: "tablist" }, ...Object.entries(TABS)
      .filter(([id]) => f.code || id === "facts")
      .map(([id, name]) => el("button", { role: "tab", "aria-selected": String(id === chosen), onclick: () => { location.hash = `${number}/${id}`; } }, name)));
    if (chosen === "code") tabs.append(el("button", { "aria-pressed": String(all), onclick: () => { all = !all; show(); } }, "unchanged blocks, too"));
    const body = { code: () => code(f, all), changes: () => changes(f), graph: () => graphs(f), facts: () => facts(f) }[chosen]();
    section.replaceChildren(el("h2", {}, `${f.name} `, el("span", { class: "dim" }, `${f.section}, ${count(f.slots[0])} → ${count(f.slots[1])} slots`)), tabs, body);
  }

  head();
  overview();
  addEventListener("hashchange", show);
  show();
})();
