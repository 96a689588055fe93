//! Recipes: how to call a helper, as text that anyone can add to (`recipes/*.txt`).
//!
//! A recipe file is a list of lines; what a line says holds for the calls after it, until the next `helper`.
//!
//! | line | meaning |
//! |---|---|
//! | `helper 26 skb_load_bytes` | the calls that follow are of this helper; everything else is reset |
//! | `on tc act` | program types to try; all of them where this is missing |
//! | `ret neg` | how failure looks: `neg`ative, `null`, `never`, `void`, `returning` (it comes back only then), or `is:N,M` (one of these numbers) |
//! | `call ctx 4 out:16 16` | one call with these arguments |
//! | `setup`, `after` | indented lines of assembly follow: before the call (r6 is the context), or after everything was looked at (r7 is the result). `goto out` leaves |
//! | `callback NAME` | indented lines of assembly follow: a function of its own |
//! | `taken r8 r9` | registers that `setup` uses and that may not be readable after the call |
//! | `hole -64 16` | frame bytes that cannot be read (dynptrs, iterators): offset and length |
//! | `frame 256` | bytes of frame, where callbacks need some, too |
//! | `unsteady` | the result need not be the same twice: time, random numbers, addresses |
//! | `unseen changes the context: why` | an effect the table declares for this helper, and why no run can show it |
//! | `fixed` | arguments are not varied, because others would harm this process |
//! | `skip 109 send_signal: why` | not called, and the reason |
//!
//! Arguments: `ctx`, a number, `$NAME` (a number of the [`Lab`](crate::lab::Lab)), `null`, `out:N` (a buffer of N bytes with
//! arbitrary contents), `in:HEX`, `in:"text"`, `u32:N`, `u64:N`, `zero:N` (buffers with these contents), `map:NAME`,
//! `value:NAME+N` (an address in an array's first element), `fn:NAME` (a callback), `fp-N` (a frame address), `r8` (what
//! `setup` left there). In assembly `map[NAME]`, `value[NAME+N]`, `fn[NAME]`, `$NAME` stand for the same.

use std::collections::BTreeMap;

use thiserror::Error;

/// A line that is no recipe.
#[derive(Debug, Error)]
#[error("{file}:{line}: {message}")]
pub struct RecipeError {
    /// Which file.
    pub file: String,
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

/// How a helper tells that it failed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Failure {
    /// A negative number.
    #[default]
    Negative,
    /// Null, or the number zero.
    Null,
    /// It cannot fail.
    Never,
    /// It returns nothing.
    Void,
    /// It returns only when it fails.
    Returning,
    /// One of these numbers (low 32 bits).
    Is(Vec<i64>),
}

/// One argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Argument {
    /// The program's context.
    Context,
    /// A plain number.
    Number(i64),
    /// A number of the laboratory.
    Named(String),
    /// Frame bytes; without content they are arbitrary.
    Buffer {
        /// From the frame pointer.
        offset: i32,
        /// In bytes.
        length: u32,
        /// What the recipe puts there.
        content: Option<Vec<u8>>,
    },
    /// A map.
    Map(String),
    /// An address in the first element of an array map.
    MapValue(String, u32),
    /// A function of the program.
    Callback(String),
    /// An address in the frame, filled by `setup`.
    Frame(i32),
    /// A register that `setup` filled.
    Register(u8),
}

/// One call with all that belongs to it.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// Where it stands, for reports: `file:line`.
    pub place: String,
    /// The helper's number.
    pub helper: i32,
    /// The helper's name.
    pub name: String,
    /// Names of program types; empty for all.
    pub kinds: Vec<String>,
    /// How failure looks.
    pub failure: Failure,
    /// Arguments, r1 first.
    pub arguments: Vec<Argument>,
    /// Assembly before the call.
    pub setup: String,
    /// Assembly after it.
    pub after: String,
    /// Callbacks by name.
    pub callbacks: BTreeMap<String, String>,
    /// Registers not looked at.
    pub taken: Vec<u8>,
    /// Frame bytes not looked at.
    pub holes: Vec<(i32, u32)>,
    /// Bytes of frame.
    pub frame: u32,
    /// The result may differ from run to run.
    pub unsteady: bool,
    /// Other arguments than these must not be tried.
    pub fixed: bool,
    /// The call as written.
    pub text: String,
}

/// What a file says.
#[derive(Debug, Default)]
pub struct Recipes {
    /// All calls in order.
    pub calls: Vec<Call>,
    /// Helpers that are not called: number, name, reason.
    pub skipped: Vec<(i32, String, String)>,
    /// Effects that no run can show: helper, effect, reason.
    pub explained: BTreeMap<(i32, String), String>,
}

/// The most frame a program has.
const FRAME: u32 = 512;

/// All recipe files of this crate.
///
/// # Errors
/// The first line that cannot be read.
pub fn all() -> Result<Recipes, RecipeError> {
    let files = [
        ("plain.txt", include_str!("../recipes/plain.txt")),
        ("maps.txt", include_str!("../recipes/maps.txt")),
        ("memory.txt", include_str!("../recipes/memory.txt")),
        ("skb.txt", include_str!("../recipes/skb.txt")),
        ("sockets.txt", include_str!("../recipes/sockets.txt")),
        ("objects.txt", include_str!("../recipes/objects.txt")),
        ("unseen.txt", include_str!("../recipes/unseen.txt")),
    ];
    let mut recipes = Recipes::default();
    for (file, text) in files {
        Reader::new(file).read(text, &mut recipes)?;
    }
    Ok(recipes)
}

/// Which block of assembly indented lines go to.
#[derive(Clone)]
enum Block {
    Setup,
    After,
    Callback(String),
}

struct Reader<'a> {
    file: &'a str,
    line: usize,
    now: Call,
    block: Option<Block>,
}

impl<'a> Reader<'a> {
    fn new(file: &'a str) -> Self {
        Reader { file, line: 0, now: Call::default(), block: None }
    }

    fn read(mut self, text: &str, into: &mut Recipes) -> Result<(), RecipeError> {
        for (index, line) in text.lines().enumerate() {
            self.line = index + 1;
            let said = line.split_once("//").map_or(line, |(s, _)| s).trim_end();
            if said.is_empty() {
                continue;
            }
            let outcome =
                if said.starts_with([' ', '\t']) { self.assembly(said.trim()) } else { self.directive(said, into) };
            outcome.map_err(|message| RecipeError { file: self.file.to_owned(), line: self.line, message })?;
        }
        Ok(())
    }

    fn assembly(&mut self, line: &str) -> Result<(), String> {
        let text = match &self.block {
            Some(Block::Setup) => &mut self.now.setup,
            Some(Block::After) => &mut self.now.after,
            Some(Block::Callback(name)) => self.now.callbacks.entry(name.clone()).or_default(),
            None => return Err("assembly belongs after setup, after or callback".into()),
        };
        text.push_str(line);
        text.push('\n');
        Ok(())
    }

    fn directive(&mut self, line: &str, into: &mut Recipes) -> Result<(), String> {
        self.block = None;
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        match word {
            "helper" => {
                let (number, name) = rest.split_once(' ').ok_or("helper NUMBER NAME")?;
                let helper = number.parse().map_err(|_| "helper NUMBER NAME")?;
                self.now = Call { helper, name: name.trim().to_owned(), frame: FRAME, ..Call::default() };
            }
            "on" => self.now.kinds = rest.split_whitespace().map(str::to_owned).collect(),
            "ret" => self.now.failure = failure(rest)?,
            "setup" => {
                self.now.setup.clear();
                self.block = Some(Block::Setup);
            }
            "after" => {
                self.now.after.clear();
                self.block = Some(Block::After);
            }
            "callback" => {
                self.now.callbacks.insert(rest.to_owned(), String::new());
                self.block = Some(Block::Callback(rest.to_owned()));
            }
            "taken" => self.now.taken = rest.split_whitespace().map(register).collect::<Result<_, _>>()?,
            "hole" => {
                let (at, length) = rest.split_once(' ').ok_or("hole OFFSET LENGTH")?;
                self.now.holes.push((integer(at)? as i32, integer(length)? as u32));
            }
            "frame" => self.now.frame = integer(rest)? as u32,
            "fixed" => self.now.fixed = true,
            "unsteady" => self.now.unsteady = true,
            "skip" => {
                let (what, why) = rest.split_once(':').ok_or("skip NUMBER NAME: reason")?;
                let (number, name) = what.split_once(' ').ok_or("skip NUMBER NAME: reason")?;
                into.skipped.push((integer(number)? as i32, name.trim().to_owned(), why.trim().to_owned()));
            }
            "unseen" => {
                let (effect, why) = rest.split_once(':').ok_or("unseen EFFECT: reason")?;
                into.explained.insert((self.now.helper, effect.trim().to_owned()), why.trim().to_owned());
            }
            "call" => {
                let mut call = self.now.clone();
                call.place = format!("{}:{}", self.file, self.line);
                call.text = format!("{}({})", call.name, tokens(rest)?.join(", "));
                call.arguments = arguments(rest, call.frame)?;
                into.calls.push(call);
            }
            _ => return Err(format!("no line begins with {word:?}")),
        }
        Ok(())
    }
}

fn failure(text: &str) -> Result<Failure, String> {
    Ok(match text {
        "neg" => Failure::Negative,
        "null" => Failure::Null,
        "never" => Failure::Never,
        "void" => Failure::Void,
        "returning" => Failure::Returning,
        _ => {
            let numbers = text.strip_prefix("is:").ok_or("ret neg, null, never, void, returning or is:N,M")?;
            Failure::Is(numbers.split(',').map(integer).collect::<Result<_, _>>()?)
        }
    })
}

fn register(text: &str) -> Result<u8, String> {
    text.strip_prefix('r').and_then(|n| n.parse().ok()).ok_or(format!("{text} is no register"))
}

fn integer(text: &str) -> Result<i64, String> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |t| (true, t));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse::<u64>().ok(),
    };
    let value = value.ok_or_else(|| format!("{text} is no number"))? as i64;
    Ok(if negative { value.wrapping_neg() } else { value })
}

/// Words; a quoted text belongs to the word it stands in.
fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        if c == '"' {
            quoted = !quoted;
        }
        let word = words.last_mut().ok_or("no word")?;
        match c {
            ' ' | '\t' if !quoted => words.push(String::new()),
            _ => word.push(c),
        }
    }
    words.retain(|w| !w.is_empty());
    if quoted { Err("a quote is not closed".into()) } else { Ok(words) }
}

fn arguments(text: &str, frame: u32) -> Result<Vec<Argument>, String> {
    // Buffers lie at the low end of the frame, with pattern in front of each and behind it.
    let mut next = 16 - frame as i32;
    let mut place = |length: usize, content: Option<Vec<u8>>| {
        let offset = next;
        next += (length as i32 + 7) / 8 * 8 + 8;
        Argument::Buffer { offset, length: length as u32, content }
    };
    tokens(text)?
        .iter()
        .map(|word| {
            let (class, rest) = word.split_once(':').unwrap_or((word, ""));
            Ok(match class {
                "ctx" => Argument::Context,
                "null" => Argument::Number(0),
                "out" => place(integer(rest)? as usize, None),
                "zero" => {
                    let n = integer(rest)? as usize;
                    place(n, Some(vec![0; n]))
                }
                "u32" => place(4, Some((integer(rest)? as u32).to_le_bytes().to_vec())),
                "u64" => place(8, Some(integer(rest)?.to_le_bytes().to_vec())),
                "in" => {
                    let bytes = contents(rest)?;
                    place(bytes.len(), Some(bytes))
                }
                "map" => Argument::Map(rest.to_owned()),
                "value" => {
                    let (map, at) = rest.split_once('+').unwrap_or((rest, "0"));
                    Argument::MapValue(map.to_owned(), integer(at)? as u32)
                }
                "fn" => Argument::Callback(rest.to_owned()),
                _ if word.starts_with('$') => Argument::Named(word[1..].to_owned()),
                _ if word.starts_with("fp-") => Argument::Frame(integer(&word[2..])? as i32),
                _ if word.starts_with('r') => Argument::Register(register(word)?),
                _ => Argument::Number(integer(word)?),
            })
        })
        .collect()
}

/// `"text"` with `\0` and `\n`, or groups of hexadecimal digits with `_` between them; `*N` behind a group repeats it.
fn contents(text: &str) -> Result<Vec<u8>, String> {
    if let Some(quoted) = text.strip_prefix('"') {
        let inside = quoted.strip_suffix('"').ok_or("a quote is not closed")?;
        return Ok(inside.replace("\\0", "\0").replace("\\n", "\n").into_bytes());
    }
    let mut bytes = Vec::new();
    for group in text.split('_') {
        let (digits, times) = group.split_once('*').unwrap_or((group, "1"));
        let digit = |c: char| c.to_digit(16).ok_or("hexadecimal digits");
        let digits: Vec<u32> = digits.chars().map(digit).collect::<Result<_, _>>()?;
        if !digits.len().is_multiple_of(2) {
            return Err("an odd number of hexadecimal digits".into());
        }
        let group: Vec<u8> = digits.chunks(2).map(|d| (d[0] << 4 | d[1]) as u8).collect();
        bytes.extend(group.repeat(integer(times)? as usize));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_calls_with_their_surroundings() {
        let text =
            "helper 26 skb_load_bytes\non tc\nsetup\n  r8 = 1\ncall ctx 4 out:16 16\ncall ctx -1 in:\"ab\\0\" 3\n";
        let mut recipes = Recipes::default();
        Reader::new("t").read(text, &mut recipes).unwrap();
        assert_eq!(recipes.calls.len(), 2);
        assert_eq!(recipes.calls[1].setup, "r8 = 1\n");
        assert_eq!(recipes.calls[1].arguments[1], Argument::Number(-1));
        let content = Some(b"ab\0".to_vec());
        assert_eq!(recipes.calls[1].arguments[2], Argument::Buffer { offset: -496, length: 3, content });
        assert_eq!(contents("00ff*2_07").unwrap(), [0, 255, 0, 255, 7]);
    }

    #[test]
    fn tells_which_line_is_wrong() {
        let error = Reader::new("t").read("helper 1 x\nsing\n", &mut Recipes::default()).unwrap_err();
        assert_eq!(error.line, 2);
    }
}
