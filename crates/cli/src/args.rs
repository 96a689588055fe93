//! The command line as data, and the help that teaches it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bpf_driver::{Goal, Options, Parts, PassSelection};
use bpf_platform::KernelVersion;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::ci::judge::{Allowance, Figure};
use crate::counts::args::CountsArgs;
use crate::instrument::args::InstrumentArgs;
use crate::kept_parts::KeptParts;
use crate::many::args::{MANY, ManyArgs, TableArgs};

/// Shown by `bpf-opt --help`.
const OVERVIEW: &str = "\
Examples:
  bpf-opt opt prog.o -o prog.opt.o              smaller code, proven equal, accepted by this kernel
  bpf-opt opt prog.o -o prog.opt.o --diff       the same, and show what changed, side by side
  bpf-opt opt *.o build/ -d out/                many objects at once, one table (also verify, check, load, bench)
  bpf-opt verify prog.o prog.opt.o              prove that two objects behave the same, whoever made them
  bpf-opt check prog.o                          is it safe? if not: where, why, on which path
  bpf-opt dis prog.o --lines                    listing with labels, relocations and source lines
  bpf-opt load prog.o                           the kernel's verdict and the verifier's statistics
  bpf-opt run prog.o --pcap traffic.pcap        run an XDP or tc program on packets, no kernel involved
  bpf-opt difftest prog.o prog.opt.o            run both in this kernel on the same packets and compare
  bpf-opt bench prog.o prog.opt.o               time both in this kernel, beside each other
  bpf-opt instrument prog.o -o counting.o       a copy that counts how often its blocks run, for `opt --counts`
  bpf-opt profile -o here.toml                  what operations cost on this machine, for `opt --costs`
  bpf-opt ci --baseline bpf.json build/         for pipelines: fail when a program became worse than it was
  bpf-opt specialize prog.o --rodata debug=0 --frozen-map allowed=allowed.json -o out.o   for what will not change
  bpf-opt reduce prog.o -o small.o --test CMD   the smallest object on which a command still succeeds
  bpf-opt rules verify                          prove again what earlier searches have learnt
  bpf-opt filter tcp port 80 -o f.o --hook xdp  tcpdump's language to an object for XDP or tc
  bpf-opt kernels load prog.o --kernels 6.1     the verdict of another kernel, booted under qemu
  bpf-opt raw prog.o -o prog.c                  a program as an array of struct bpf_insn; `--raw` reads such

Exit codes:
  0    yes: written, equal, accepted, ran
  1    no: the objects differ (verify, difftest), the kernel rejects a program (load), the program faults (run),
       a program is unsafe (check) or became worse (ci)
  2    wrong usage, or a file that cannot be read, understood or written
  3    don't know: not proven either way (verify), no right to load (load), no model of a call (run, check)
  70   internal error; nothing was written
  130  interrupted; `opt` has written the best proven result so far
Of many objects the most urgent code counts: 130, 70, 2, 1, 3, 0 in this order.

Nothing is ever written in parts: an output file is either complete or not touched.";

const OPT_HELP: &str = "\
Every change is proven equal before it is applied, and the result is loaded into the running kernel
(not attached) as the last check; what the kernel rejects is taken back. Then original and result are
run in it on some hundreds of inputs, in a network namespace of their own, if the kernel can run such
programs on demand and all that they may call is harmless (`--no-run-check` leaves that out; it takes at
most a tenth of the time limit). A difference means that a proof was wrong: the change to blame is taken
back, a warning says so, and the JSON report has what a bug report needs; the exit code stays 0, because
what was written is without it. Without the right to load programs both checks are skipped, with a
warning; of an object for machines of the other byte order, with a note. `bpf-opt check` judges then.

Examples:
  bpf-opt opt prog.o -o prog.opt.o
  bpf-opt opt prog.o -o prog.o -O4 --time-limit 120   in place; until nothing more is found, or two minutes
  bpf-opt opt prog.o -o out.o --goal verifier         least work for the kernel's verifier
  bpf-opt opt prog.o -o out.o --cpu v2 --no-kernel    for an older kernel than this one
  bpf-opt opt prog.o -o out.o --program xdp_main --json report.json
  bpf-opt opt prog.o -o out.o --explain               what each pass does, with source lines
  bpf-opt opt prog.o -o out.o --report out.html       the same to look at: code, changes, proofs, graphs
  bpf-opt opt prog.o -o out.o -O1                     rules only: most of the gain, in milliseconds
  bpf-opt opt prog.o -o out.o --rounds 20 --time-limit 600   the same bytes on every machine
  bpf-opt opt prog.o -o out.o --rounds 5 --by-function --parts kept/    each function alone; results kept, and taken again
  bpf-opt opt prog.o -o out.o --goal latency --keep 5 five proven forms, timed here, the fastest first
  bpf-opt opt prog.o -o out.o --goal latency --costs here.toml   by what `bpf-opt profile` has measured
  bpf-opt opt prog.o -o out.o --goal latency --pcap traffic.pcap --maps contents.json    by how often blocks run there
  bpf-opt opt prog.O2.o --also prog.Os.o -o out.o     of each function the better of two builds
  bpf-opt opt prog.o -o out.o --passes none           read and write only: the same bytes
  bpf-opt opt --raw prog.bin --type xdp --maps prog.maps -o out.bin   an array of struct bpf_insn (`bpf-opt help raw`)
  clang … -c prog.c -o - | bpf-opt opt - -o - > out.o standard input and output
  bpf-opt opt *.o build/ -d out/                      many objects; those in build/ keep their paths below it
  bpf-opt opt build/ -d out/ --sort saved --only changed --csv table.csv --json reports.json

With -d, --jobs is the number of threads over all objects, and --time-limit is for each object. One that fails
does not stop the others; the exit code is then 2 (70 for an internal error), and the table says which. Two
objects for one place are refused before any work. docs/many.md has all of it.

The rules run first (-O1), then global passes on an SSA form of each function; what is
left of the time goes into a search for what no rule finds. It ends when a round has brought nothing (-O2,
which takes a second or so), when three have (-O3), or when nothing is open (-O4, which --time-limit alone
stands for, too); what it learns is kept (--cache), so that the next run is quick. The same --seed gives the
same bytes, as long as no time ends anything: the limit (half of it for global passes); beyond 1,000 slots, or -O2, a function's
share of that (a quarter, or half, of what is left); beyond -O2 the second, or third of that share, for the proof of one step.
For the same bytes on every machine there is `--rounds N`, without global passes: N rounds of search,
each a fixed amount of work (about a second of one processor), whatever the speed of the machine and
--jobs. The JSON report says how many rounds there were (`search.rounds`) and what ended them
(`search.ended`: `rounds`, or `time` if the time limit was too short).

Ctrl-C stops the search and writes the best result so far; a second Ctrl-C gives up at once.
The JSON report is described in docs/json.md.

Exit codes: 0 written; 2 bad input or usage, nothing written; 70 internal error, nothing written;
130 interrupted, best result so far written.";

const VERIFY_HELP: &str = "\
Compares functions of the same section and name: the same calls with the same arguments and memory, the
same stores where anyone may look, the same return value, and no access the first could not make. Beside
them all that loader and kernel see: contents of sections with their relocations followed, symbols, and the
BTF types of maps, variables, externals, functions and CO-RE records. What differs without effect, such as
order and numbers of types, source lines and DWARF, is listed as ignored.

Both are run on some inputs first, in the interpreter and, where that is permitted and can do no harm, in
this kernel: a difference found by running is reported at once; otherwise the prover decides.
If all is equal, both are loaded (where that is permitted): the kernel must take from the second what it
takes from the first. With --assume `check` is asked in the kernel's place where that is not asked.

Examples:
  bpf-opt verify prog.o prog.opt.o
  bpf-opt verify old.o new.o --program xdp_main --time-limit 300 --json verdict.json
  bpf-opt verify build/ -d out/                  each object against what `opt build/ -d out/` made of it

Exit codes: 0 all equal; 1 some function differs (with an input that shows it), the objects differ
outside of the code, or this kernel refuses a program of the second only; 2 bad input or usage;
3 no difference found, but not everything proven.";

const SPECIALIZE_HELP: &str = "\
Values that will not change become constants, and what they decide goes away. Lookups in frozen maps become lookups
in tables in a read-only section of the object (`.rodata.bpf_opt`): comparisons for up to 8 keys of four bytes, a
perfect hash for others, an index for arrays. Where the verifier refuses that or has much more work, keys are not compared, or
lookups stay: a note says so. The result is optimized as `opt` does, with the same options; each change
is proven, and the code of each table is run on all its keys.

Of an array all elements have to be listed; --array-length and --zero-others say what is not in the list.

Nothing checks at run time that what is declared holds: freeze the map (`bpf_map_freeze`, `bpftool map freeze`) and
leave the variables alone. The object says in a note what it was specialized for (`.note.bpf_opt`);
`bpf-opt verify prog.o out.o --assume` proves it equal under that, and tells it; with the declarations, too, it says no
if the object was specialized for something else. Without --assume it is another program. A map that the object itself may change is refused.

With --guard the old code stays beside the new: set the number in the section `.data.bpf_opt` to other than 0 before
you change one of the maps.

Examples:
  bpf-opt specialize prog.o --rodata debug=0 --rodata limit=1500 -o out.o
  bpf-opt specialize prog.o --rodata config=hex:0a00000100000000 -o out.o
  bpftool -j map dump name allowed > allowed.json
  bpf-opt specialize prog.o --frozen-map allowed=allowed.json -o out.o
  bpf-opt verify prog.o out.o --assume --frozen-map allowed=allowed.json

Exit codes: as of `opt`; 1 if this kernel (or `check`, where it is not asked) takes the original and not what is specialized,
nothing written.";

const CHECK_HELP: &str = "\
Walks every path of each program as the verifier of Linux 6.18 does for a privileged loader, without a
kernel: accesses of stack, packet, map values and context, what registers hold, arguments of helpers,
references, loops, return values. What is wrong is said in the verifier's words, with the path that leads
there and, where one is found, a packet on which the interpreter faults.

Examples:
  bpf-opt check prog.o
  bpf-opt check prog.o --program xdp_main --json verdict.json
  bpf-opt check k2.o --type xdp                  where the section name tells no program type
  sudo bpf-opt check prog.o --against-kernel     beside the running kernel's verdict
  bpf-opt check prog.o --kernel 5.10             what Linux 5.10 does not have, and where it stands
  bpf-opt check build/ --only violation          many objects, a row for each program

For each program the first release of Linux is named that has all it uses, by tables: program type, maps,
helpers, instructions, fields of the context. With --kernel, what that release does not have is listed. The
tables do not say what an older verifier makes of the code, nor, before 6.1, from which release on a type of
programs may call a helper; which kernel functions a kernel has, only its BTF tells.

docs/check.md says what is checked and how often the kernel agrees.

Exit codes: 0 all programs are safe; 1 some program is not, or needs a newer kernel than --kernel; 2 bad
input or usage; 3 no violation found, but something in a program is not described here (kernel functions,
kernel types).";

const DIS_HELP: &str = "\
Examples:
  bpf-opt dis prog.o
  bpf-opt dis prog.o --program xdp_main --lines
  bpf-opt dis prog.o --cfg | dot -Tsvg > prog.svg

The syntax is that of llvm-objdump -d. Comments behind `;` name what a number refers to: helper,
callee, map, global data, CO-RE access.

Exit codes: 0 printed; 2 bad input or usage.";

const LOAD_HELP: &str = "\
Loads every program of the object and unloads it again; nothing is attached or pinned.

Examples:
  sudo bpf-opt load prog.o
  sudo bpf-opt load prog.o --log                      why a program was rejected
  sudo bpf-opt load k2.o --type xdp --json load.json  where the section name tells no program type
  sudo bpf-opt load *.o build/ --sort insns           many objects, a row for each program
  sudo bpf-opt load --compare old.o new.o             what the verifier makes of the one beside the other
  sudo bpf-opt load --compare build/ out/ --only more --sort insns_diff --fail-if-more 5

Exit codes: 0 the kernel accepts all programs; 1 it does not, or with --compare refuses of the second what it
takes of the first, or lacks it there, or has more to do than --fail-if-more allows; 2 bad input or usage;
3 no right to load programs here.";

const KERNELS_HELP: &str = "\
Boots the kernel under qemu (with KVM where that works), with this very program as its init: nothing is
installed in the guest, and nothing of this machine changes. One boot does for many objects, and takes a
few seconds. Answers are kept (bpf-opt/verdicts in the user's cache directory); what was asked before needs
no boot.

Examples:
  bpf-opt kernels add /boot/vmlinuz-6.1.0-56-amd64     remember an image
  bpf-opt kernels list
  bpf-opt kernels load prog.o prog.opt.o --kernels 6.1,6.12 --json verdicts.json
  bpf-opt kernels load *.o build/ --kernels ./vmlinuz  an image that is not remembered; all .o files in build/, too
  bpf-opt opt prog.o -o out.o --kernels 6.1,6.12       a result that these kernels take, too

Debian's images come with `apt-get download linux-image-VERSION` and `dpkg -x FILE.deb FOLDER`.

Exit codes: 0 done, or all kernels accept all programs; 1 some do not; 2 bad input or usage, or an object that
could not be read (the others were judged); 3 no answer: no qemu, or the machine did not answer in time.";

const RUN_HELP: &str = "\
Interprets the program in a model of the kernel: maps, packet, context and the common helpers. Maps and
global data keep their contents from packet to packet.

Examples:
  bpf-opt run prog.o --packet 'ffffffffffff 020000000001 0800 4500...'
  bpf-opt run prog.o --program xdp_main --pcap traffic.pcap
  bpf-opt run trace.o --context 00000000000000002a00000000000000

Exit codes: 0 ran to its end on every packet; 1 the program faulted; 2 bad input or usage; 3 it uses
something that the interpreter has no model of.";

const BENCH_HELP: &str = "\
Runs the programs that all objects have in this kernel (BPF_PROG_TEST_RUN; nothing is attached), on the same inputs with the
same map contents, in a network namespace of their own. Each object is loaded several times, the first one twice as often; in
each round each has its turn, on one processor, and the time of an empty program is taken off. Inputs are made up, or come from
a capture; of each return value there are up to three. Arrays longer than a few thousand elements are shortened. Raw tracepoints and
syscall programs are not timed: the kernel tells no time of their runs.

A run begins when the one before has ended (behind each exit, a load waits for all that came before, and branches that are predicted
wrong wait for the load): the time of a run is what a packet waits for its verdict. With --back-to-back the processor is at work on several
runs at once, as on many packets of one kind; there, what operations wait for costs little. So it is without the option where the copies
that wait do not load, or a run ends by a legacy load; the report says so.

For each class: nanoseconds an input (interquartile mean and quartiles), how many times as long as the first object (99.9%
interval), and what is to be believed of that: `faster` and `slower` need an interval that does not hold 1, and half a nanosecond.
Cycles are told where the kernel permits perf events and the processor counts them.

Examples:
  sudo bpf-opt bench prog.o prog.opt.o
  sudo bpf-opt bench prog.o prog.opt.o --pcap traffic.pcap --maps contents.json --json times.json
  sudo bpf-opt bench old.o new.o --fail-if-slower 2%     for pipelines: exit code 1 if new is slower by more than 2%
  sudo bpf-opt bench build/ -d out/ --sort ratio         each object beside what `opt build/ -d out/` made of it

Exit codes: 0 timed; 1 an object is slower by more than --fail-if-slower; 2 bad input or usage; 3 nothing could be timed, or no
right to use the kernel.";

const PROFILE_HELP: &str = "\
Times small programs in this kernel (BPF_PROG_TEST_RUN; nothing is attached): of each class of operations one with many copies
and one with half as many, in a chain and beside each other. What one more copy takes is the cost: nanoseconds, the median of
interleaved rounds with its quartiles. The table says what `--goal latency` weighs code by, in passes and search, and what times in
reports are estimated by; tables for x86-64 and arm64 come with the program.

--check holds a table against whole programs: of each object several forms are made (as it is, -O1, -O2, --goal latency) and timed
beside each other as `bench --back-to-back` does, with some built-in pairs; their times are estimated by the table along the paths
that their inputs take. Printed is the rank correlation (Spearman, of the logarithms of the ratios) over the pairs of forms whose times differ by more
than 3 %, and are told apart from noise.

Examples:
  sudo bpf-opt profile                                 print the table of this machine
  sudo bpf-opt profile -o here.toml --json here.json   keep it
  bpf-opt opt prog.o -o out.o --goal latency --costs here.toml
  sudo bpf-opt profile --check *.o                     measure, and hold the table against these objects
  sudo bpf-opt profile --check --costs x86-64 *.o      the same with a table that comes with the program, or a file
  sudo bpf-opt profile --prog-id 17 --prog-id 18 --enable-stats 10 --json runs.json     how often loaded programs run
  bpf-opt opt prog.o -o out.o --goal latency --program-runs runs.json

docs/profile.md has all of it.

Exit codes: 0 measured; 2 bad input or usage; 3 no right to use the kernel, nothing to compare, or no runs counted.";

const INPUTS_HELP: &str = "\
Looks for packets, contexts and map contents that together reach every basic block: made packets first, then, for each side of
a branch that no run took, an input that a solver finds from the conditions of the path there. A block counts as reached only if
the interpreter went through it. Where this kernel can run the program (BPF_PROG_TEST_RUN; nothing is attached), each input is
run there, too: blocks are `in kernel` if the run ends as in the interpreter (result, packet, maps) and its path does not hang
on clock or random numbers; `interpreter only` if not, or if results of helpers had to be made up that no test run can set.
Blocks that facts show never to be reached are counted as `dead`; for the rest it says why they were not reached.

Examples:
  sudo bpf-opt inputs prog.o
  bpf-opt inputs prog.o --no-kernel --function xdp_main --time-limit 10
  sudo bpf-opt inputs prog.o --json inputs.json      the inputs: packets, contexts, maps, which block is reached by which

Exit codes: 0 all blocks reached; 2 bad input or usage; 3 some were not.";

const INSTRUMENT_HELP: &str = "\
The copy does what the object does, and adds one to a counter at the beginning of each block and on the taken side of each
branch: an atomic addition in a map of its own, `.data.counts`, which loaders make of a section of that name. Load and attach it in the
place of the object for a while, read the counters, and optimize the object by them. What this kernel takes of the object and refuses of
the copy does not count; neither do functions without room for it. Each counter costs some nanoseconds a run.

Examples:
  sudo bpf-opt instrument prog.o -o counting.o
  sudo bpf-opt instrument prog.o --read --map-id 17 -o counts.json       (`bpftool map` shows the number)
  bpftool -j map dump name .data.counts | bpf-opt instrument prog.o --read --dump - -o counts.json
  bpf-opt opt prog.o -o out.o --goal latency --counts counts.json

Exit codes: 0 written; 2 bad input or usage, or counters of another object.";

const DIFFTEST_HELP: &str = "\
Loads both objects (nothing is attached) and runs every program that this kernel can run on demand: XDP, tc,
socket filters, cgroup/skb, lwt, flow dissectors, netfilter, raw tracepoints, syscall programs; provided that all the
helpers and kernel functions it may call are known to leave nothing behind (`--allow-effects` runs the others, too). All
this happens in a network namespace of its own, and no map is pinned. Packets are made up, of all protocols and
broken ones too, or come from a capture. Every 100 packets the maps of both are filled alike; return value,
packet and context are compared after every packet, all maps after every 100. What differs from run to run
of the first object already (time, random numbers, stack bytes nobody wrote) is not a difference.

Examples:
  sudo bpf-opt difftest prog.o prog.opt.o
  sudo bpf-opt difftest old.o new.o --packets 100000 --seed 7
  sudo bpf-opt difftest old.o new.o --program xdp_main --pcap traffic.pcap --json diff.json
  sudo bpf-opt difftest k2.o k2.opt.o --type xdp       where the section name tells no program type

No difference is no proof: `bpf-opt verify` proves.

Exit codes: 0 no difference seen; 1 a difference (with the packet that shows it); 2 bad input or usage, or an
object that does not load; 3 no right to load programs here, or nothing that could be run.";

const REDUCE_HELP: &str = "\
Leaves out of an object what a command can do without. The command is run by `sh -c` with `{}` replaced by the
path of a candidate (at the end, if there is no `{}`); a candidate is kept if the command exits with 0. So the
command has to exit with 0 if the candidate still shows the problem: `grep` for the message, or the tool with `!`
before it. What it prints is not shown. A candidate can always be read as an object; whether the kernel takes it
is for the command to say.

Functions become `exit` alone, branches lose a side, blocks end early, instructions go or become `r = 0`,
until no further reduction succeeds. Maps, data and the symbols of functions stay. The same command gives
the same result, if it always says the same.

Examples:
  bpf-opt reduce bug.o -o small.o --test 'bpf-opt verify {} {} 2>&1 | grep -q panicked'
  bpf-opt reduce prog.o -o small.o --test 'bpf-opt load {} --log | grep -q \"invalid mem access\"'
  bpf-opt reduce prog.o -o small.o --test './still-differs.sh {}' --time-limit 3600

Ctrl-C writes the smallest object so far; a second Ctrl-C gives up at once.

Exit codes: 0 written; 2 bad input or usage, or the command does not succeed on IN.o itself: nothing written;
130 interrupted, smallest so far written.";

const RAW_HELP: &str = "\
An object becomes the array of one of its programs, with the subprograms that it calls behind it; an array becomes an
object, which libbpf loads. `opt`, `verify`, `check`, `load` and `dis` take arrays themselves with `--raw`.

Arrays are read as bytes (8 for an instruction), as C (initializers of struct bpf_insn, the macros of the kernel's
filter.h) and as hexadecimal digits. They are written in the form that the output's name says (.bin; .c, .h; .hex,
.txt; .o is an object) or --form.

An array names maps by numbers: descriptors, or indices. What they are like, a file says, a line for each map:

    # number type         key value entries
    3        percpu_array 4   8     256      name rxcnt
    4        hash_of_maps 4   4     16       flags 1 of 3

It is taken at its word: where it is wrong, so may be what is made of the program. `name` is for C, where it may stand
for the number; `of` says what the inner maps are like. Not taken: classic BPF (tcpdump -dd), and programs as the kernel
shows them (bpftool prog dump xlated), in which it has replaced accesses of the context and calls. Arrays are those
of little-endian machines; of a big-endian object none is made.

Examples:
  bpf-opt raw prog.o --program xdp_main -o prog.bin --write-maps prog.maps
  bpf-opt opt --raw prog.bin --type xdp --maps prog.maps -o small.bin
  bpf-opt raw small.bin --type xdp --maps prog.maps -o small.o
  bpf-opt raw small.bin -o small.c
  bpf-opt dis --raw small.bin

Exit codes: 0 written; 2 bad input or usage.";

const RULES_HELP: &str = "\
What a search has found for a window of code, or that it found nothing, is kept from run to run. Some rules
come with the program (--shipped), so that a first run is as quick as a later one. A rule is never trusted:
where it is applied, it is proven again.

Examples:
  bpf-opt rules list
  bpf-opt rules verify                                prove every rule from its text
  bpf-opt rules export rules.txt                      (`-`: standard output)
  bpf-opt rules import rules.txt --cache other.redb
  bpf-opt rules html rules.html --shipped             a page to browse what comes with the program
  bpf-opt rules stats

Exit codes: 0 done, all proven; 1 some rule could not be proven (verify); 2 bad input or usage.";

const CI_HELP: &str = "\
Measures each program and compares it with a baseline, a JSON file that is kept with the sources: instruction slots, the
instructions that this kernel's verifier processes, stack depth, and with --run-time how long it takes. What is more by more
than --allow says fails, and so does what the kernel refuses now. Programs and objects that are new or not there any more are
told. Figures are kept by the object's name, or by its path below a folder that is given, and by the program's name.

Examples:
  sudo bpf-opt ci --baseline bpf.json build/ --update      make the baseline, or take over what is
  sudo bpf-opt ci --baseline bpf.json build/               for pipelines: exit code 1 if a program became worse
  sudo bpf-opt ci --baseline bpf.json build/ --allow 2% --allow insns=5%
  sudo bpf-opt ci --baseline bpf.json build/ --junit report.xml --sarif report.sarif
  bpf-opt ci --baseline bpf.json build/ --no-kernel        slots alone, without any rights

docs/ci.md says what the file holds, and has recipes for pipelines and build systems.

Exit codes: 0 no program is worse, or the baseline was updated; 1 a program is worse or refused; 2 bad input or usage, or an
object that cannot be measured; 3 no right to load programs here, or what the baseline has could not be measured.";

const COMPLETIONS_HELP: &str = "\
`make install` and the Debian package put them where the shells look.

Examples:
  bpf-opt completions bash > ~/.local/share/bash-completion/completions/bpf-opt
  bpf-opt completions zsh > ~/.zfunc/_bpf-opt               with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  bpf-opt completions fish > ~/.config/fish/completions/bpf-opt.fish

Exit codes: 0 printed; 2 wrong usage.";

const MAN_HELP: &str = "\
The pages say what `bpf-opt help COMMAND` says. `make install` and the Debian package bring them along.

Examples:
  bpf-opt man opt | man -l -
  bpf-opt man --dir ~/.local/share/man/man1

Exit codes: 0 printed or written; 2 no such command, or a folder that cannot be written.";

/// Makes eBPF objects smaller and faster, and proves every change.
///
/// Reads a compiled BPF object, finds better code for its programs, proves each change equal to what it
/// replaces, asks the running kernel's verifier, and writes an object that takes the place of the old one.
#[derive(Debug, Parser)]
#[command(name = "bpf-opt", version, after_help = OVERVIEW, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Optimize an object
    #[command(after_help = OPT_HELP, override_usage = "bpf-opt opt [OPTIONS] IN.o -o OUT.o\n       bpf-opt opt [OPTIONS] IN.o|FOLDER… -d DIR")]
    Opt(Box<OptArgs>),
    /// Prove that two objects behave the same, or show an input on which they do not
    #[command(after_help = VERIFY_HELP, override_usage = "bpf-opt verify [OPTIONS] A.o B.o\n       bpf-opt verify [OPTIONS] IN.o|FOLDER… -d DIR")]
    Verify(VerifyArgs),
    /// Judge the safety of programs as the kernel's verifier does, without a kernel
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Print the code of an object, as a listing or as a graph
    #[command(after_help = DIS_HELP)]
    Dis(DisArgs),
    /// Ask the running kernel: does it load, and what does it cost the verifier
    #[command(after_help = LOAD_HELP)]
    Load(LoadArgs),
    /// Run a program in the interpreter
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Run two objects in this kernel on the same packets and compare what they do
    #[command(after_help = DIFFTEST_HELP)]
    Difftest(DifftestArgs),
    /// Time objects in this kernel, beside each other: which is faster, if it is not noise
    #[command(after_help = BENCH_HELP)]
    Bench(BenchArgs),
    /// Measure what each class of operation costs on this machine: a table for `opt --costs`
    #[command(after_help = PROFILE_HELP)]
    Profile(ProfileArgs),
    /// Make an object for declared constants and frozen maps
    #[command(after_help = SPECIALIZE_HELP)]
    Specialize(Box<SpecializeArgs>),
    /// Find inputs that together reach every block: packets, contexts, map contents
    #[command(after_help = INPUTS_HELP)]
    Inputs(InputsArgs),
    /// Make a copy of an object that counts how often its blocks run, or read what it has counted
    #[command(after_help = INSTRUMENT_HELP)]
    Instrument(InstrumentArgs),
    /// Make an object smaller while a command still succeeds on it
    #[command(after_help = REDUCE_HELP)]
    Reduce(ReduceArgs),
    /// What searches have learnt: list, prove again, share
    #[command(after_help = RULES_HELP)]
    Rules(RulesArgs),
    /// Compile a filter of tcpdump's language: to an eBPF object, to classic BPF, or to run it on a capture
    #[command(after_help = crate::filter::HELP)]
    Filter(crate::filter::FilterArgs),
    /// A program as an array of struct bpf_insn, and such an array as an object
    #[command(after_help = RAW_HELP)]
    Raw(RawCommandArgs),
    /// Other kernels than the running one, booted under qemu: what do they say of objects?
    #[command(after_help = KERNELS_HELP)]
    Kernels(KernelsArgs),
    /// Keep figures of programs in a pipeline: slots, the verifier's work, stack, time; fail when they become worse
    #[command(after_help = CI_HELP, override_usage = "bpf-opt ci [OPTIONS] --baseline FILE.json IN.o|FOLDER…")]
    Ci(CiArgs),
    /// Print what a shell needs to complete commands and options
    #[command(after_help = COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Print or write the manual: a page for each command
    #[command(after_help = MAN_HELP)]
    Man(ManArgs),
    /// What runs in a kernel that `kernels load` has booted
    #[command(hide = true)]
    Guest,
}

/// Of commands that take bare arrays of instructions, too.
#[derive(Clone, Debug, Default, Args)]
pub struct RawArgs {
    /// The input is an array of struct bpf_insn (bytes, C, hexadecimal digits), not an object; `bpf-opt help raw`
    #[arg(long)]
    pub raw: bool,
    /// With --raw: what the maps are like that the array names, a line for each: NUMBER TYPE KEY VALUE ENTRIES
    #[arg(long, value_name = "FILE")]
    pub maps: Option<PathBuf>,
}

/// [`bpf_raw::Form`] on the command line, and objects.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum FormArg {
    /// Eight bytes for an instruction
    Binary,
    /// Initializers of struct bpf_insn
    C,
    /// Hexadecimal digits, a line for an instruction
    Hex,
    /// An object with the array as its program
    Object,
}

impl FormArg {
    /// The form of the array; `None` for objects.
    pub fn form(self) -> Option<bpf_raw::Form> {
        match self {
            FormArg::Binary => Some(bpf_raw::Form::Binary),
            FormArg::C => Some(bpf_raw::Form::C),
            FormArg::Hex => Some(bpf_raw::Form::Hex),
            FormArg::Object => None,
        }
    }
}

/// Of `raw`.
#[derive(Debug, Args)]
pub struct RawCommandArgs {
    /// An object, or an array
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Where to write the array or the object
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Which program of an object, if it has several
    #[arg(long, value_name = "NAME")]
    pub program: Option<String>,
    /// How to write it [default: what the output's name says]
    #[arg(long, value_enum)]
    pub form: Option<FormArg>,
    /// Of an array that becomes an object: its program type (`xdp`, `tc`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type)]
    pub program_type: Option<String>,
    /// Of an array: what the maps are like that it names
    #[arg(long, value_name = "FILE")]
    pub maps: Option<PathBuf>,
    /// Of an object: write here what the maps are like that the array names
    #[arg(long, value_name = "FILE")]
    pub write_maps: Option<PathBuf>,
}

/// Of `opt`.
#[derive(Clone, Debug, Args)]
pub struct OptArgs {
    /// The object to optimize (`-`: standard input); with -d as many as there are, and folders: all .o files in them
    #[arg(value_name = "IN.o", required_unless_present = "list")]
    pub inputs: Vec<PathBuf>,
    /// Where to write the result (`-`: standard output); may be the input itself
    #[arg(short, long, value_name = "OUT.o", required_unless_present_any = ["directory", "list_parts", "make_parts"])]
    pub output: Option<PathBuf>,
    /// Where to write the results of many objects: below this folder, by their names; those of a folder keep their paths in it
    #[arg(short, long, value_name = "DIR", conflicts_with_all = ["output", "report", "diff", "explain", "stats", "also", "dump_queries"])]
    pub directory: Option<PathBuf>,
    /// Many objects.
    #[command(flatten)]
    pub many: ManyArgs,
    /// With -d: write the table as comma-separated values (`-`: standard output)
    #[arg(long, value_name = "FILE", requires = "directory", help_heading = MANY)]
    pub csv: Option<PathBuf>,
    /// Bare arrays.
    #[command(flatten)]
    pub raw: RawArgs,
    /// With --raw: how to write the result [default: what the output's name says, or else as the input]
    #[arg(long, value_enum, requires = "raw")]
    pub form: Option<FormArg>,
    /// What to minimize
    #[arg(long, value_enum, default_value = "size")]
    pub goal: GoalArg,
    /// By which table of costs `latency` is less, and times in reports are estimated: a file that `bpf-opt profile -o` has written, or
    /// `x86-64` or `arm64`, which come with the program [default: that of this machine's architecture]
    #[arg(long, value_name = "TABLE", value_parser = crate::costs::table)]
    pub costs: Option<&'static bpf_driver::Costs>,
    /// Counts.
    #[command(flatten)]
    pub counted: CountsArgs,
    /// How much to do: 1: rules; 2: global passes (--ssa) and a short search, too; 3: a search that ends when it gains no
    /// more; 4: one that ends when nothing is open [default: 2; with --time-limit 4; with --rounds no global passes]
    #[arg(short = 'O', value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(1..=4), conflicts_with_all = ["ssa", "no_search"])]
    pub level: Option<u8>,
    /// Time for the whole object, and with -d for each one; functions not reached in time stay as they are [default: 30; of
    /// -O2 10, or 30 with `--goal verifier`; of -O4 600]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub time_limit: Option<Duration>,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Rounds of the search at most: the same seed gives the same bytes on every machine, if the time limit is not reached.
    /// What earlier runs have learned is then only used if --cache names it
    #[arg(long, value_name = "N", conflicts_with = "no_search")]
    pub rounds: Option<u64>,
    /// With --rounds: work on each function by itself, with N rounds of its own; what becomes of it then does not depend on
    /// what else is in the object
    #[arg(long, requires = "rounds", conflicts_with_all = ["ssa", "also", "keep"])]
    pub by_function: bool,
    /// With --by-function: take results of functions from this folder, each proven again, and keep there what is new
    #[arg(long, value_name = "DIR", requires = "by_function")]
    pub parts: Option<PathBuf>,
    /// Only make the results of functions for --parts; write no object, and do not ask the kernel
    #[arg(long, requires = "parts", conflicts_with_all = ["output", "directory", "list_parts"])]
    pub make_parts: bool,
    /// Only print the functions of each object and the names of their results, a line of JSON for each object
    #[arg(long, requires = "by_function", conflicts_with_all = ["output", "directory"])]
    pub list_parts: bool,
    /// Worker threads, over all objects that are worked on at once [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Write the report as JSON to this file (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Highest instruction set level to use [default: what the object uses already, at least v3]
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub cpu: Option<Cpu>,
    /// The oldest kernel that is to take the result. 6.14 and later need no test for an element of an array that is there;
    /// before 5.12, no instruction is used that it does not know
    #[arg(long, value_name = "VERSION", default_value_t = KernelVersion::OLDEST)]
    pub min_kernel: KernelVersion,
    /// Which passes run: `all`, `none`, or names separated by commas
    #[arg(long, value_name = "PASSES", default_value = "all", value_parser = passes)]
    pub passes: PassSelection,
    /// Global passes on an SSA form of each function, too (new: slower, and off unless asked for)
    #[arg(long)]
    pub ssa: bool,
    /// Rules only, those of the passes and those shipped: no search for what no rule finds (also where `--passes` names passes)
    #[arg(long)]
    pub no_search: bool,
    /// Where what the search learns is kept [default: bpf-opt/rules.redb in the user's cache directory]
    #[arg(long, value_name = "FILE")]
    pub cache: Option<PathBuf>,
    /// Neither use nor keep what searches have learned
    #[arg(long, conflicts_with = "cache")]
    pub no_cache: bool,
    /// Do not use the rules that come with this program either (`bpf-opt rules list --shipped`)
    #[arg(long)]
    pub no_shipped_rules: bool,
    /// With `--goal latency`: keep up to N proven forms of the search, measure them in this kernel, write the fastest to OUT and
    /// the others, in their order, beside it (`out.2.o`, `out.3.o` …) [default: 5, of which only the fastest is written; 1
    /// without search or kernel, with --rounds, and with other goals]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=20))]
    pub keep: Option<u8>,
    /// Only the function with this name (may be repeated) [default: all]
    #[arg(long, value_name = "NAME")]
    pub program: Vec<String>,
    /// Another build of the same source (may be repeated): each function begins with the best that is proven equal; all
    /// else is IN.o's
    #[arg(long, value_name = "FILE.o")]
    pub also: Vec<PathBuf>,
    /// Do not ask the running kernel's verifier, nor run anything in it; programs are judged as `bpf-opt check` does
    #[arg(long)]
    pub no_kernel: bool,
    /// Kernels that must take the result, too, wherever they take the original: names, or as much of their beginning as tells
    /// them apart (`6.1`), or paths of images; booted under qemu (`bpf-opt help kernels`), once for all objects, and asked
    /// when the work on an object is done, which --time-limit does not bound
    #[arg(long, value_name = "KERNEL,…", value_delimiter = ',')]
    pub kernels: Vec<String>,
    /// Where the images of --kernels are kept [default: bpf-opt/kernels in the user's data directory]
    #[arg(long, value_name = "FOLDER", requires = "kernels")]
    pub images: Option<PathBuf>,
    /// Do not run original and result in this kernel to compare them
    #[arg(long)]
    pub no_run_check: bool,
    /// Program type for the kernel, where the section name does not tell (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type)]
    pub program_type: Option<String>,
    /// By how much the work of the kernel's verifier on a program may grow; two instructions always may, none with `--goal
    /// verifier` [default: 2, and with `--goal latency` 200 instructions always may; of `specialize` 300, and 1,000 instructions]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub max_verifier_growth: Option<f64>,
    /// Never merge accesses to neighbouring places of shared memory, nor read more of it than before, nor make an atomic add of
    /// load, add and store
    #[arg(long)]
    pub strict_shared_memory: bool,
    /// Keep DWARF sections of changed objects, although they describe the old code
    #[arg(long)]
    pub keep_debug: bool,
    /// Write every query of the prover to this folder as SMT-LIB 2, with our verdict
    #[arg(long, value_name = "DIR")]
    pub dump_queries: Option<PathBuf>,
    /// Write a report to open in a browser: totals, code before and after, every change with its proof, graphs
    #[arg(long, value_name = "OUT.html")]
    pub report: Option<PathBuf>,
    /// Print the changed blocks before and after side by side, as wide as the terminal
    #[arg(long)]
    pub diff: bool,
    /// With --diff: all blocks of changed functions
    #[arg(long, requires = "diff")]
    pub full: bool,
    /// With --diff: source lines, too
    #[arg(long, requires = "diff")]
    pub lines: bool,
    /// Print what became of each function change by change: pass, place, instructions before and after, slots saved
    #[arg(long)]
    pub explain: bool,
    /// Print of each function blocks, longest path, estimated time, the verifier's states and stack, and when its smallest form was found
    #[arg(long)]
    pub stats: bool,
    /// Print nothing but warnings and errors
    #[arg(short, long)]
    pub quiet: bool,
    /// What the object is specialized for first.
    #[arg(skip)]
    pub declared: Option<Box<bpf_specialize::Declared>>,
    /// The files in which that is said.
    #[arg(skip)]
    pub declared_in: Vec<PathBuf>,
}

/// What is declared for `specialize`.
#[derive(Debug, Args)]
pub struct DeclaredArgs {
    /// A variable in `.rodata` holds this value: a number, true, false, or all its bytes (`hex:0a000001`); without `=VALUE` what
    /// the object says (may be repeated)
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub rodata: Vec<String>,
    /// The loader gives a kconfig variable this number: of a bool 0 or 1, of a tristate 0, 1 or 2 for n, y or m (may be repeated)
    #[arg(long, value_name = "NAME=VALUE", allow_hyphen_values = true)]
    pub kconfig: Vec<String>,
    /// A map holds the elements of this file and no others, as `bpftool -j map dump` writes them; of an array all have to be
    /// there (may be repeated)
    #[arg(long, value_name = "NAME=FILE")]
    pub frozen_map: Vec<String>,
    /// The loader makes a frozen array so long, and not as the object says (may be repeated)
    #[arg(long, value_name = "NAME=NUMBER")]
    pub array_length: Vec<String>,
    /// The elements of a frozen array that its file does not have are 0 (may be repeated)
    #[arg(long, value_name = "NAME")]
    pub zero_others: Vec<String>,
    /// The maps may change: the general code stays, and is used once user space sets the number in `.data.bpf_opt` to
    /// other than 0
    #[arg(long, requires = "frozen_map")]
    pub guard: bool,
}

/// Of `specialize`.
#[derive(Debug, Args)]
pub struct SpecializeArgs {
    /// What will not change.
    #[command(flatten)]
    pub declared: DeclaredArgs,
    /// How the result is optimized.
    #[command(flatten)]
    pub opt: OptArgs,
}

/// Of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The object that sets the standard, and the one that must behave the same (`-`: standard input); with -d as many as
    /// there are, and folders: all .o files in them
    #[arg(value_name = "A.o", required_unless_present = "list")]
    pub objects: Vec<PathBuf>,
    /// Each object against the one below this folder that `bpf-opt opt … -d DIR` writes for it
    #[arg(short, long, value_name = "DIR", conflicts_with = "dump_queries")]
    pub directory: Option<PathBuf>,
    /// Bare arrays.
    #[command(flatten)]
    pub raw: RawArgs,
    /// Write the verdicts as JSON to this file (`-`: standard output, instead of the text)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Under what B.o says that it was specialized for, which is printed; with --rodata, --kconfig, --frozen-map and --guard
    /// only if it was for just that
    #[arg(long, conflicts_with = "raw")]
    pub assume: bool,
    /// What it has to be specialized for.
    #[command(flatten)]
    pub declared: DeclaredArgs,
    /// Time for the comparison of two objects; what is not decided in time is unknown
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub time_limit: Duration,
    /// Only the function with this name, and what it calls (may be repeated) [default: all]
    #[arg(long, value_name = "NAME")]
    pub program: Vec<String>,
    /// Prove only: do not run the programs on some inputs first, do not load them
    #[arg(long)]
    pub no_run_check: bool,
    /// Run and load nothing in this kernel (the interpreter needs none)
    #[arg(long)]
    pub no_kernel: bool,
    /// Program type for the kernel, where the section name does not tell (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type)]
    pub program_type: Option<String>,
    /// Write every query of the prover to this folder as SMT-LIB 2, with our verdict
    #[arg(long, value_name = "DIR")]
    pub dump_queries: Option<PathBuf>,
    /// Many objects.
    #[command(flatten)]
    pub many: ManyArgs,
    /// For scripts.
    #[command(flatten)]
    pub table: TableArgs,
}

/// Of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The object (`-`: standard input), or many; folders: all .o files in them
    #[arg(value_name = "FILE.o", required_unless_present = "list")]
    pub files: Vec<PathBuf>,
    /// Bare arrays.
    #[command(flatten)]
    pub raw: RawArgs,
    /// Only the program with this name (may be repeated) [default: all]
    #[arg(long, value_name = "NAME")]
    pub program: Vec<String>,
    /// Program type, where the section name does not tell (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type)]
    pub program_type: Option<String>,
    /// Write the verdicts as JSON to this file (`-`: standard output, instead of the text)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Load each program and put the running kernel's verdict beside ours
    #[arg(long)]
    pub against_kernel: bool,
    /// Say what Linux of this release does not have: helpers, map types, instructions, fields of contexts … (`5.10`, `6.1`)
    #[arg(long, value_name = "VERSION", conflicts_with = "against_kernel")]
    pub kernel: Option<KernelVersion>,
    /// Many objects.
    #[command(flatten)]
    pub many: ManyArgs,
    /// For scripts.
    #[command(flatten)]
    pub table: TableArgs,
}

/// Of `dis`.
#[derive(Debug, Args)]
pub struct DisArgs {
    /// The object
    #[arg(value_name = "FILE.o")]
    pub file: PathBuf,
    /// Bare arrays.
    #[command(flatten)]
    pub raw: RawArgs,
    /// Of an array: its program type
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type, requires = "raw")]
    pub program_type: Option<String>,
    /// Only the function with this name (may be repeated) [default: all]
    #[arg(long, value_name = "NAME")]
    pub program: Vec<String>,
    /// Print the control-flow graphs for Graphviz instead
    #[arg(long, conflicts_with = "lines")]
    pub cfg: bool,
    /// Print the functions in SSA form instead, as the global passes see them first
    #[arg(long, conflicts_with_all = ["cfg", "lines"])]
    pub ssa: bool,
    /// Show source file, line and column from BTF.ext
    #[arg(long)]
    pub lines: bool,
}

/// Of `load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The object (`-`: standard input), or many; folders: all .o files in them
    #[arg(value_name = "FILE.o", required_unless_present = "list")]
    pub files: Vec<PathBuf>,
    /// Compare two: what the kernel makes of the second beside the first. Of two folders, objects of the same name
    #[arg(long)]
    pub compare: bool,
    /// With --compare: exit with 1 if the verifier processes more instructions of a program, by more than this
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "compare")]
    pub fail_if_more: Option<f64>,
    /// Bare arrays.
    #[command(flatten)]
    pub raw: RawArgs,
    /// Load every program as this type instead of what its section name says (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type)]
    pub program_type: Option<String>,
    /// Write the verdicts as JSON to this file (`-`: standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print the end of the verifier's log for each rejected program
    #[arg(long)]
    pub log: bool,
    /// Many objects.
    #[command(flatten)]
    pub many: ManyArgs,
    /// For scripts.
    #[command(flatten)]
    pub table: TableArgs,
}

/// Of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The object
    #[arg(value_name = "FILE.o")]
    pub file: PathBuf,
    /// The program to run; needed if the object has several
    #[arg(long, value_name = "NAME")]
    pub program: Option<String>,
    /// The packet as hexadecimal digits; white space and colons do not count
    #[arg(long, value_name = "HEX", group = "input")]
    pub packet: Option<String>,
    /// A file whose bytes are the packet
    #[arg(long, value_name = "FILE", group = "input")]
    pub packet_file: Option<PathBuf>,
    /// A pcap or pcapng file: the program runs on each packet in turn
    #[arg(long, value_name = "FILE", group = "input")]
    pub pcap: Option<PathBuf>,
    /// Bytes of the context as hexadecimal digits, for programs that do not work on packets
    #[arg(long, value_name = "HEX")]
    pub context: Option<String>,
}

/// Of `difftest`.
#[derive(Debug, Args)]
pub struct DifftestArgs {
    /// The object that sets the standard
    #[arg(value_name = "A.o")]
    pub a: PathBuf,
    /// The object that must do the same
    #[arg(value_name = "B.o")]
    pub b: PathBuf,
    /// Packets for each program
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub packets: u64,
    /// Seed of packets and map contents
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Only the program with this name (may be repeated), and alone if the others do not load [default: all]
    #[arg(long, value_name = "NAME")]
    pub program: Vec<String>,
    /// Program type for the kernel, where the section name does not tell (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type)]
    pub program_type: Option<String>,
    /// Run programs, too, that call what is not known to be harmless in a test run. They act on this machine, though
    /// not on its network
    #[arg(long)]
    pub allow_effects: bool,
    /// Write the results as JSON to this file (`-`: standard output, instead of the text)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Take the packets from this pcap or pcapng file, over and over
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Run on the inputs that `bpf-opt inputs --json` has written to this file for the first object, each once, with its own contents of
    /// maps; those that no test run can make are left out
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["pcap", "packets", "seed"])]
    pub inputs_from: Option<PathBuf>,
}

/// Arguments of `bpf-opt inputs`.
#[derive(Debug, Args)]
pub struct InputsArgs {
    /// The object
    #[arg(value_name = "FILE.o")]
    pub file: PathBuf,
    /// Only the program with this name, with the functions that it calls (may be repeated) [default: all]
    #[arg(long, value_name = "NAME", visible_alias = "program")]
    pub function: Vec<String>,
    /// Seconds for the whole object; longer programs get more of them
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub time_limit: Duration,
    /// Seed of made packets
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Run programs in the interpreter alone
    #[arg(long)]
    pub no_kernel: bool,
    /// Program type, where the section name does not tell (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type)]
    pub program_type: Option<String>,
    /// List all blocks that were not reached, not only the first of each function
    #[arg(long)]
    pub all: bool,
    /// Write the report as JSON to this file (`-`: standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The objects; ratios are those to the first one. With -d as many as there are, and folders: all .o files in them
    #[arg(value_name = "A.o", required_unless_present = "list")]
    pub objects: Vec<PathBuf>,
    /// Each object beside the one below this folder that `bpf-opt opt … -d DIR` writes for it, one pair after another
    #[arg(short, long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Many objects.
    #[command(flatten)]
    pub many: ManyArgs,
    /// Only the program with this name (may be repeated) [default: all]
    #[arg(long, value_name = "NAME")]
    pub program: Vec<String>,
    /// Take the packets from this pcap or pcapng file
    #[arg(long, value_name = "FILE", conflicts_with = "packet")]
    pub pcap: Option<PathBuf>,
    /// Take this packet, in hexadecimal digits
    #[arg(long, value_name = "HEX")]
    pub packet: Option<String>,
    /// Take the inputs that `bpf-opt inputs --json` has written to this file for one of the objects, of each program up to 24, each with
    /// its own contents of maps; those that no test run can make are left out
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["pcap", "packet", "maps", "directory"])]
    pub inputs_from: Option<PathBuf>,
    /// What maps hold, by name, as lists that `bpftool -j map dump` writes; the others are filled with made contents
    #[arg(long, value_name = "FILE.json")]
    pub maps: Option<PathBuf>,
    /// Seed of inputs and map contents
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// How often each object is loaded: the kernel puts the code somewhere else each time. XDP programs are timed in twelve of the loads
    /// at most
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub loads: u16,
    /// Rounds for each load; of XDP a quarter, each sixteen times as long
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Let the processor begin with a run while it is still at work on the one before: what operations wait for is hidden then (throughput)
    /// [default: a run begins when the one before has ended (latency)]
    #[arg(long)]
    pub back_to_back: bool,
    /// Exit with 1 if an object is slower than the first by more than this, over all inputs of a program
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub fail_if_slower: Option<f64>,
    /// Program type for the kernel, where the section name does not tell (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type)]
    pub program_type: Option<String>,
    /// Time programs, too, that call what is not known to be harmless in a test run
    #[arg(long)]
    pub allow_effects: bool,
    /// Write the results as JSON to this file (`-`: standard output, instead of the text)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write them as a table of comma-separated values (`-`: standard output)
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// Of `profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// With --check: the objects of which forms are compared
    #[arg(value_name = "FILE.o", requires = "check")]
    pub objects: Vec<PathBuf>,
    /// Hold the table against whole programs: the built-in ones and the objects
    #[arg(long)]
    pub check: bool,
    /// Measure nothing, and tell how often the loaded program with this number ran, and how long a run takes, as the kernel counts (may
    /// be repeated)
    #[arg(long, value_name = "N", conflicts_with_all = ["check", "output", "rounds", "turn"])]
    pub prog_id: Vec<u32>,
    /// With --prog-id: have the kernel count for so long (BPF_ENABLE_STATS; some nanoseconds more for each run of any program), and then do
    /// as before [default: what it has counted already]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "prog_id")]
    pub enable_stats: Option<Duration>,
    /// With --check: take this table instead of measuring one: a file, or `x86-64` or `arm64`, which come with the program
    #[arg(long, value_name = "TABLE", requires = "check", conflicts_with = "output", value_parser = crate::costs::table)]
    pub costs: Option<&'static bpf_driver::Costs>,
    /// Write the table to this file (`-`: standard output, instead of the text)
    #[arg(short, long, value_name = "TABLE")]
    pub output: Option<PathBuf>,
    /// Rounds in which all programs have a turn
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub rounds: u16,
    /// Microseconds of a turn
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub turn: u32,
    /// With --check: load every program as this type instead of what its section name says (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type, requires = "check")]
    pub program_type: Option<String>,
    /// With --check: print every pair
    #[arg(long, requires = "check")]
    pub pairs: bool,
    /// Write all that was measured as JSON to this file (`-`: standard output, instead of the text)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Of `reduce`.
#[derive(Debug, Args)]
pub struct ReduceArgs {
    /// The object to make smaller
    #[arg(value_name = "IN.o")]
    pub input: PathBuf,
    /// Where to write the result; may be the input itself
    #[arg(short, long, value_name = "OUT.o")]
    pub output: PathBuf,
    /// The command that exits with 0 on what is interesting; `{}` stands for the object
    #[arg(long, value_name = "CMD")]
    pub test: String,
    /// Time in all; the smallest object so far is then written
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub time_limit: Duration,
    /// Time for the command on one candidate; later it is ended and counts as failed
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub test_limit: Duration,
    /// Print nothing but warnings and errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// Of `rules`.
#[derive(Debug, Args)]
pub struct RulesArgs {
    /// What to do with the rules.
    #[command(subcommand)]
    pub command: RulesCommand,
    /// The file they are in [default: bpf-opt/rules.redb in the user's cache directory]
    #[arg(long, value_name = "PATH", global = true)]
    pub cache: Option<PathBuf>,
    /// The rules that come with this program, not those of earlier runs
    #[arg(long, global = true, conflicts_with = "cache")]
    pub shipped: bool,
}

/// Of `kernels`.
#[derive(Debug, Args)]
pub struct KernelsArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: KernelsCommand,
    /// Where images are kept [default: bpf-opt/kernels in the user's data directory]
    #[arg(long, value_name = "FOLDER", global = true)]
    pub images: Option<PathBuf>,
}

/// The commands of `kernels`.
#[derive(Debug, Subcommand)]
pub enum KernelsCommand {
    /// Keep a copy of a kernel image, to be named by `--kernels`
    Add {
        /// A bzImage, such as /boot/vmlinuz-6.1.0-56-amd64
        #[arg(value_name = "VMLINUZ")]
        image: PathBuf,
        /// What to call it [default: its release]
        #[arg(long, value_name = "NAME", value_parser = image_name)]
        name: Option<String>,
    },
    /// Print the images that are kept
    List,
    /// Delete an image
    Remove {
        /// As `list` prints it
        #[arg(value_name = "NAME", value_parser = image_name)]
        name: String,
    },
    /// Load objects in other kernels: the verdict of each
    Load(KernelsLoadArgs),
}

/// Of `kernels load`.
#[derive(Debug, Args)]
pub struct KernelsLoadArgs {
    /// The objects (`-`: standard input, which holds one); folders: all .o files in them
    #[arg(value_name = "FILE.o", required_unless_present = "list")]
    pub files: Vec<PathBuf>,
    /// Also the objects that this file names, one on a line (`-`: standard input; `#` begins a remark)
    #[arg(long, value_name = "FILE")]
    pub list: Option<PathBuf>,
    /// In these kernels: names, or as much of their beginning as tells them apart (`6.1`), or paths of images
    #[arg(long, value_name = "KERNEL,…", required = true, value_delimiter = ',')]
    pub kernels: Vec<String>,
    /// Load every program as this type instead of what its section name says (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type)]
    pub program_type: Option<String>,
    /// What runs the other kernels: the processor, or emulation [default: kvm if it boots within 15 s, else tcg]
    #[arg(long, value_name = "WHAT")]
    pub accelerator: Option<AcceleratorArg>,
    /// Give up a kernel that does not boot, or answer a question, in that many seconds
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub time_limit: Duration,
    /// Ask again what was asked before, and keep no answers
    #[arg(long)]
    pub no_cache: bool,
    /// Write the verdicts as JSON to this file (`-`: standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// [`bpf_vm::Accelerator`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum AcceleratorArg {
    /// The processor
    Kvm,
    /// Emulation by qemu
    Tcg,
}

impl From<AcceleratorArg> for bpf_vm::Accelerator {
    fn from(arg: AcceleratorArg) -> Self {
        match arg {
            AcceleratorArg::Kvm => Self::Kvm,
            AcceleratorArg::Tcg => Self::Tcg,
        }
    }
}

/// Of `ci`.
#[derive(Debug, Args)]
pub struct CiArgs {
    /// The objects; folders: all .o files in them
    #[arg(value_name = "FILE.o", required_unless_present = "list")]
    pub objects: Vec<PathBuf>,
    /// The figures to compare with
    #[arg(long, value_name = "FILE.json")]
    pub baseline: PathBuf,
    /// Write what is measured to the baseline, and fail for nothing that became worse
    #[arg(long)]
    pub update: bool,
    /// By how much a figure may grow: `2%` all but times, `slots=2%`, `insns=2%`, `stack=2%`, `ns=2%` one of them (may be
    /// repeated) [default: by nothing, `ns` by 10%]
    #[arg(long, value_name = "[FIGURE=]PERCENT", value_parser = allowance)]
    pub allow: Vec<Allowance>,
    /// Time the programs, too (column `ns`: nanoseconds an input, as `bench` says). Times are compared only if the baseline
    /// is of the same processor
    #[arg(long, conflicts_with = "no_kernel")]
    pub run_time: bool,
    /// Do not ask the running kernel: slots alone
    #[arg(long)]
    pub no_kernel: bool,
    /// Load every program as this type instead of what its section name says (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", value_parser = program_type)]
    pub program_type: Option<String>,
    /// Write a JUnit report: an object is a suite, a program a test
    #[arg(long, value_name = "FILE.xml")]
    pub junit: Option<PathBuf>,
    /// Write a SARIF report: what became worse, at the source lines of programs
    #[arg(long, value_name = "FILE.sarif")]
    pub sarif: Option<PathBuf>,
    /// Write the figures as JSON to this file (`-`: standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Many objects.
    #[command(flatten)]
    pub many: ManyArgs,
    /// For scripts.
    #[command(flatten)]
    pub table: TableArgs,
}

/// Of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Print the page of this command (`opt`, `kernels load` …) [default: that of bpf-opt itself]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub command: Vec<String>,
    /// Write all pages to this folder instead
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// The commands of `rules`.
#[derive(Debug, Subcommand)]
pub enum RulesCommand {
    /// Print all rules
    List,
    /// Prove every rule again, those of the cache or of a file with their text
    Verify {
        /// A file that `export` has written
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Write all rules as text
    Export {
        /// Where to (`-`: standard output)
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Only the general ones, those with parameters
        #[arg(long)]
        general: bool,
    },
    /// Write all rules that make code shorter as a page to browse: one file that loads nothing
    Html {
        /// Where to (`-`: standard output)
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Add the rules of a file to the cache
    Import {
        /// A file that `export` has written
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Count them
    Stats,
}

/// [`Goal`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GoalArg {
    /// Fewest instruction slots
    Size,
    /// Fewest estimated nanoseconds
    Latency,
    /// Fewest instructions for the kernel's verifier to process, also with more slots; what it refuses as too much is tried to be
    /// made acceptable
    Verifier,
}

/// Instruction set levels, as in clang's -mcpu.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Cpu {
    /// The original instruction set
    V1,
    /// Linux 4.14
    V2,
    /// 32-bit arithmetic and jumps, atomics; Linux 5.1 to 5.12
    V3,
    /// Signed division, sign extension, gotol …; Linux 6.6
    V4,
}

impl GoalArg {
    /// As the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            GoalArg::Size => "size",
            GoalArg::Latency => "latency",
            GoalArg::Verifier => "verifier",
        }
    }
}

impl OptArgs {
    /// Worker threads.
    pub fn jobs(&self) -> usize {
        self.jobs.map_or_else(cpus, usize::from)
    }

    /// Time for the whole object.
    pub fn time_limit(&self) -> Duration {
        let seconds = match self.level() {
            // The verifier is asked many times.
            Some(2) if self.goal != GoalArg::Verifier => 10,
            Some(4) => 600,
            _ => 30,
        };
        self.time_limit.unwrap_or(Duration::from_secs(seconds))
    }

    /// How much to do, if it is not for as long as there is time.
    fn level(&self) -> Option<u8> {
        let says_what = self.rounds.is_some() || self.no_search || self.ssa;
        self.level.or((!says_what).then_some(if self.time_limit.is_some() { 4 } else { 2 }))
    }

    /// What the pipeline is to do.
    pub fn options(&self) -> Options {
        let costs = self.costs.unwrap_or(bpf_driver::Costs::of_host());
        let goal = match self.goal {
            GoalArg::Size => Goal::Size,
            GoalArg::Latency => Goal::Latency(costs),
            GoalArg::Verifier => Goal::Verifier,
        };
        // A table may be more work than a call. How much more is told.
        let (growth, free_verifier_growth) = match (self.max_verifier_growth, &self.declared) {
            (None, Some(_)) => (300.0, 1000),
            (None, None) => (Options::default().max_verifier_growth, Options::free_growth(goal)),
            _ => (Options::default().max_verifier_growth, Options::default().free_verifier_growth),
        };
        let leveled = Options { goal, ..Options::default() }.at_level(self.level().unwrap_or_default());
        Options {
            costs,
            time_limit: self.time_limit(),
            seed: self.seed,
            rounds: self.rounds,
            jobs: self.jobs(),
            cpu: self.cpu.map(|c| c as u8 + 1),
            min_kernel: self.min_kernel,
            passes: self.passes.clone(),
            ssa: self.ssa || leveled.ssa,
            programs: self.program.clone(),
            also: Vec::new(),
            kernel: !self.no_kernel,
            run_check: !self.no_run_check,
            program_type: self.program_type.clone(),
            max_verifier_growth: self.max_verifier_growth.unwrap_or(growth),
            free_verifier_growth,
            original: None,
            strict_shared_memory: self.strict_shared_memory,
            keep_debug: self.keep_debug,
            explain: self.explain || self.report.is_some(),
            queries: None,
            forms: self.keep.map_or_else(|| self.default_forms(), usize::from),
            search: self.searches(),
            shipped_rules: !self.no_shipped_rules && self.passes == PassSelection::All,
            cache: self.cache_file(),
            by_function: self.by_function,
            parts: self.parts.as_deref().map(|folder| Arc::new(KeptParts::below(folder)) as Arc<dyn Parts>),
            ..leveled
        }
    }

    fn searches(&self) -> bool {
        !self.no_search && self.level() != Some(1) && self.passes == PassSelection::All
    }

    /// Several, where the fastest of them can be told by running them.
    fn default_forms(&self) -> usize {
        const MEASURED: usize = 5;
        let runs_repeat = self.rounds.is_some();
        match self.goal {
            GoalArg::Latency if self.searches() && !self.no_kernel && !runs_repeat => MEASURED,
            _ => 1,
        }
    }

    /// The files that are read beside the objects, and must stay as they are.
    pub fn read_besides(&self) -> impl Iterator<Item = &Path> {
        let others = self.also.iter().chain(&self.declared_in).chain(&self.many.list).chain(&self.raw.maps);
        others.chain(self.counted.read()).map(PathBuf::as_path)
    }

    /// How arrays are taken: of an object `--maps` says what its maps hold when runs are counted.
    pub fn arrays(&self) -> RawArgs {
        RawArgs {
            maps: self.raw.maps.clone().filter(|_| self.raw.raw || self.counted.pcap.is_none()),
            ..self.raw.clone()
        }
    }

    /// The contents of maps when runs are counted.
    pub fn contents(&self) -> Option<&Path> {
        self.raw.maps.as_deref().filter(|_| !self.raw.raw && self.counted.pcap.is_some())
    }

    /// Where what the search learns is kept, if it is.
    pub fn cache_file(&self) -> Option<PathBuf> {
        match (&self.cache, self.no_cache) {
            (_, true) => None,
            (Some(path), _) => Some(path.clone()),
            // What others have left there must not change what so many rounds give.
            (None, _) if self.rounds.is_some() || !self.searches() => None,
            (None, _) => default_cache(),
        }
    }
}

/// Where rules are kept by default: in the user's cache directory, `$XDG_CACHE_HOME` or `~/.cache`.
pub fn default_cache() -> Option<PathBuf> {
    Some(users("XDG_CACHE_HOME", ".cache")?.join(bpf_search::store::DEFAULT_FILE))
}

/// Where answers of other kernels are kept by default: in the user's cache directory.
pub fn default_answers() -> Option<PathBuf> {
    Some(users("XDG_CACHE_HOME", ".cache")?.join("bpf-opt/verdicts"))
}

/// Where kernel images are kept by default: in the user's data directory, `$XDG_DATA_HOME` or `~/.local/share`.
pub fn default_images() -> Option<PathBuf> {
    Some(users("XDG_DATA_HOME", ".local/share")?.join("bpf-opt/kernels"))
}

/// A folder of the user's, which this variable names (XDG Base Directory Specification).
fn users(variable: &str, in_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(in_home)))
}

/// A name of an image, which becomes that of a file.
fn image_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+' | '~');
    if text.is_empty() || text.starts_with('.') || !text.chars().all(good) {
        return Err("letters, digits and .-_+~ make a name, and no dot begins it".to_owned());
    }
    Ok(text.to_owned())
}

impl DeclaredArgs {
    /// The files in which elements are, as far as names of files are given.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.frozen_map.iter().filter_map(|text| text.split_once('=')).map(|(_, file)| Path::new(file))
    }
}

impl VerifyArgs {
    /// What the pipeline is to do.
    pub fn options(&self) -> Options {
        Options {
            time_limit: self.time_limit,
            programs: self.program.clone(),
            kernel: !self.no_kernel,
            run_check: !self.no_run_check,
            program_type: self.program_type.clone(),
            ..Options::default()
        }
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().map_err(|e| e.to_string())?;
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err("a percentage is not negative".to_owned()) }
}

/// A percentage for all figures, or for one of them.
fn allowance(text: &str) -> Result<Allowance, String> {
    let (figure, number) = match text.split_once('=') {
        None => (None, text),
        Some((name, number)) => {
            let figure = Figure::ALL.into_iter().find(|figure| figure.name() == name);
            let known = Figure::ALL.map(Figure::name).join(", ");
            (Some(figure.ok_or_else(|| format!("no figure `{name}`; there is: {known}"))?), number)
        }
    };
    Ok(Allowance { figure, percent: percent(number)? })
}

/// A program type by a name that libbpf or the kernel knows.
fn program_type(text: &str) -> Result<String, String> {
    bpf_kernel::ProgramType::named(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

fn passes(text: &str) -> Result<PassSelection, String> {
    match text.trim() {
        "all" => Ok(PassSelection::All),
        "none" => Ok(PassSelection::None),
        list => {
            let names: Vec<String> = list.split(',').map(|n| n.trim().to_owned()).collect();
            if names.iter().any(String::is_empty) {
                return Err("an empty name; give `all`, `none`, or names separated by commas".to_owned());
            }
            Ok(PassSelection::Only(names))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn growth_is_a_percentage_and_not_negative() {
        assert_eq!(percent("0"), Ok(0.0));
        assert_eq!(percent("2.5"), Ok(2.5));
        assert!(percent("-1").is_err() && percent("inf").is_err() && percent("much").is_err());
    }

    #[test]
    fn time_limits_may_be_fractions_but_not_negative_or_infinite() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert!(seconds("-1").is_err() && seconds("inf").is_err() && seconds("NaN").is_err() && seconds("1m").is_err());
    }

    #[test]
    fn passes_are_a_list_of_names() {
        assert_eq!(passes("all"), Ok(PassSelection::All));
        assert_eq!(passes("a, b"), Ok(PassSelection::Only(vec!["a".into(), "b".into()])));
        assert!(passes("a,,b").is_err() && passes("").is_err());
    }
}
