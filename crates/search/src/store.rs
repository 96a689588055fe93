//! Rules kept from run to run in an embedded database.
//!
//! One idea: the file is only open for moments. All entries are read at the start, from a copy in memory, so that
//! reading changes no byte of the file; new ones are merged in when [`Store::flush`] is called, in one transaction, so
//! that concurrent runs wait for each other for milliseconds and a killed one leaves the file as it was. Nothing here can
//! fail a run: what cannot be read or written ends as a line in [`Store::notes`], and a file that could not be written
//! once is not tried again.
//!
//! Nothing read is trusted. The key is the whole text of the problem, so there are no collisions; the
//! answer is text, and an instance of it goes through the judge like any other candidate. What a search found is only
//! remembered if its text alone proves it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::Read;
use std::mem::ManuallyDrop;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bpf_program::Op;
use bpf_prove::{Limits, Options};
use redb::backends::InMemoryBackend;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, StorageError, TableDefinition};
use rustc_hash::FxHashMap;

use crate::canonical::{Renaming, WindowKey};
use crate::cost;
use crate::general::{General, Index, generalize};
use crate::rules::{BY_GENERAL, Rule, RuleBody, answer_text, key_text, parse_entry, parse_general};

/// WindowKey text to answer text. The name carries the version of the format.
const RULES: TableDefinition<&str, &str> = TableDefinition::new("rules-1");

/// What a general rule says of windows to what becomes of them.
const GENERAL: TableDefinition<&str, &str> = TableDefinition::new("general-1");

/// General rules made of one rule, at most.
const PLACES: usize = 3;

/// How long to wait for another process that has the file open.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is remembered, in memory, with what is to be written.
#[derive(Default)]
pub struct Store {
    path: Option<PathBuf>,
    known: FxHashMap<String, String>,
    new: BTreeMap<String, RuleBody>,
    general: Index,
    /// Keys of general rules that are not in the file yet.
    new_general: BTreeSet<String>,
    /// The rules that come with the program are among them.
    has_shipped: bool,
    /// What went wrong, for the user.
    pub notes: Vec<String>,
    /// Look-ups that found an entry.
    pub hits: u64,
    /// Look-ups that found none, not even a general rule that fits.
    pub misses: u64,
    /// Look-ups that found no entry, but a general rule that fits.
    pub general_hits: u64,
}

/// Where a store is by default, below the user's cache directory. Nobody else puts a file there.
pub const DEFAULT_FILE: &str = "bpf-opt/rules.redb";

impl Store {
    /// A store that forgets everything at its end.
    pub fn in_memory() -> Store {
        Store::default()
    }

    /// The store in this file, which need not exist yet.
    pub fn open(path: &Path) -> Store {
        let mut store = Store { path: Some(path.to_owned()), ..Store::default() };
        if path.exists() {
            store.read(path, true);
        }
        store
    }

    /// The same for who only looks: whatever the file holds stays where it is.
    pub fn read_only(path: &Path) -> Store {
        let mut store = Store { path: Some(path.to_owned()), ..Store::default() };
        store.read(path, false);
        store.path = None;
        store
    }

    /// The same with the rules that come with the program ([`crate::shipped`]). They are not written to the file.
    #[must_use]
    pub fn with_shipped(mut self) -> Store {
        for g in crate::shipped::index().rules() {
            self.general.insert(g.clone());
        }
        self.has_shipped = true;
        self
    }

    /// Takes what the file holds; a broken one is moved only if it `may_move`.
    fn read(&mut self, path: &Path, may_move: bool) {
        match guarded(|| load(path)) {
            Ok((known, general)) => {
                self.known = known;
                // In the order of their keys, whatever the order of the file.
                let sorted: BTreeMap<&String, &String> = general.iter().collect();
                let rules = sorted.into_iter().filter_map(|(k, a)| parse_general(k, a).filter(|g| g.key() == *k));
                rules.for_each(|g| {
                    self.general.insert(g);
                });
            }
            Err(Trouble::Busy) => self.notes.push(format!("{}: in use; going on without", path.display())),
            Err(Trouble::Other(e)) => {
                self.notes.push(format!("{}: {e}; going on without", path.display()));
                self.path = None;
            }
            Err(Trouble::Bad(e)) if may_move => self.set_aside(&e),
            Err(Trouble::Bad(e)) => self.notes.push(format!("{}: {e}", path.display())),
        }
    }

    /// Moves a broken store out of the way; a file that is something else is left alone.
    fn set_aside(&mut self, why: &str) {
        let Some(path) = &self.path else { return };
        if !may_be_a_store(path) {
            self.notes.push(format!("{}: {why}; left as it is, nothing will be remembered", path.display()));
            self.path = None;
            return;
        }
        let aside = (0..1000)
            .map(|n| {
                let mut name = path.as_os_str().to_owned();
                name.push(format!(".bad-{n}"));
                PathBuf::from(name)
            })
            .find(|p| !p.exists());
        let moved = aside.filter(|a| std::fs::rename(path, a).is_ok());
        self.notes.push(match moved {
            Some(a) => format!("{}: {why}; moved to {}", path.display(), a.display()),
            None => {
                let note = format!("{}: {why}; nothing will be remembered", path.display());
                self.path = None;
                note
            }
        });
    }

    /// How many problems are known.
    pub fn len(&self) -> usize {
        self.known.len() + self.new.keys().filter(|k| !self.known.contains_key(*k)).count()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is known about a problem, not to be trusted: what was found for just this one, which may be
    /// that nothing was; else what general rules make of it. Such an answer is by [`BY_GENERAL`], has cost
    /// no effort, and says nothing of whether there is a better one.
    pub fn look_up(&mut self, p: &WindowKey) -> Option<RuleBody> {
        let key = key_text(p);
        let found = self.exact(&key);
        if found.is_some() {
            self.hits += 1;
            return found;
        }
        // Of regions there are only rules for exactly them.
        let instance = |rules: &Index| rules.apply(p).filter(|with| p.sides.is_empty() && stands_alone(p, with));
        // A wrong rule of the file may have come before a good one: those that come with the program are asked by themselves then.
        let shipped = || self.has_shipped.then(crate::shipped::index).and_then(instance);
        let Some(with) = instance(&self.general).or_else(shipped) else {
            self.misses += 1;
            return None;
        };
        self.general_hits += 1;
        let answer = RuleBody { with: Some(with), by: BY_GENERAL.into(), effort: 0, excluded: None };
        // Kept for this problem, so that the same run with the rules it has learned goes the same way,
        // whatever better general rules come later.
        self.record_only(p, answer.clone());
        Some(answer)
    }

    fn exact(&self, key: &str) -> Option<RuleBody> {
        match self.new.get(key) {
            Some(a) => Some(a.clone()),
            None => self.known.get(key).and_then(|a| parse_entry(key, a)).map(|r| r.answer),
        }
    }

    /// The remembered replacement for a window with this form, in the window's own names.
    pub fn instance(&mut self, p: &WindowKey, renaming: &Renaming) -> Option<Vec<Op>> {
        renaming.to_window(&self.look_up(p)?.with?)
    }

    /// Remembers what a search gave if it is better than what is known, and the general rule behind it if there is
    /// one. Whether it was kept.
    ///
    /// The form leaves out facts that the code does not read, but a replacement may read what they are about. One that
    /// is not proven by what the form says is no rule; then all that is remembered is that a search is worth its time.
    pub fn record(&mut self, p: &WindowKey, answer: RuleBody) -> bool {
        if !answer.with.as_ref().is_none_or(|with| stands_alone(p, with)) {
            self.record_only(p, RuleBody::default());
            return false;
        }
        let kept = self.record_only(p, answer);
        if kept {
            self.learn(p);
        }
        kept
    }

    /// Remembers an answer, proven or not, if it is better than what is known. Whether it was kept.
    pub fn record_only(&mut self, p: &WindowKey, answer: RuleBody) -> bool {
        let key = key_text(p);
        // What does not come back from its text as it was is not worth a bad entry.
        let rule = Rule { window: p.clone(), answer };
        if parse_entry(&key, &answer_text(&rule.answer)).as_ref() != Some(&rule) {
            return false;
        }
        let keep = self.exact(&key).is_none_or(|k| rule.answer.better_than(&k));
        if keep {
            self.new.insert(key, rule.answer);
        }
        keep
    }

    /// Makes general rules of what is known about a problem, unless those that there are give as much.
    fn learn(&mut self, p: &WindowKey) {
        let Some(answer) = self.exact(&key_text(p)).filter(|a| a.by != BY_GENERAL) else { return };
        let Some(with) = answer.with.as_ref().filter(|_| p.sides.is_empty()) else { return };
        let cost = |ops: &[Op]| cost::of(ops, p.goal);
        // A replacement may change several places: each gives a rule, applied before the next is looked for.
        for _ in 0..PLACES {
            let old = self.general.apply(p).unwrap_or_else(|| p.old.clone());
            if cost(&old) <= cost(with) {
                return;
            }
            let rest = WindowKey { old, ..p.clone() };
            // The prover is taken at its word, but a panic in it must not end the run that has the result.
            let made = catch_unwind(AssertUnwindSafe(|| generalize(&rest, &answer))).ok().flatten();
            if !made.is_some_and(|g| self.record_general(g)) {
                return;
            }
        }
    }

    /// Remembers a general rule, unless one for the same windows is as good. Whether it was kept.
    pub fn record_general(&mut self, g: General) -> bool {
        let key = g.key();
        // As with other rules: only what comes back from its text.
        if parse_general(&key, &g.answer_text()).as_ref() != Some(&g) {
            return false;
        }
        let kept = self.general.insert(g);
        if kept {
            self.new_general.insert(key);
        }
        kept
    }

    /// How many general rules there are.
    pub fn general_count(&self) -> usize {
        self.general.rules().len()
    }

    /// All general rules, ordered by what they say of windows.
    pub fn general_rules(&self) -> Vec<General> {
        let mut all: Vec<(String, &General)> = self.general.rules().iter().map(|g| (g.key(), g)).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.into_iter().map(|(_, g)| g.clone()).collect()
    }

    /// All rules that can be read, ordered by the text of their problems.
    pub fn rules(&self) -> Vec<Rule> {
        let mut all: BTreeMap<&str, Option<Rule>> =
            self.known.iter().map(|(k, a)| (k.as_str(), parse_entry(k, a))).collect();
        for (k, a) in &self.new {
            all.insert(k, parse_entry(k, &answer_text(a)));
        }
        all.into_values().flatten().collect()
    }

    /// Writes what is new. Whether everything new is in the file now.
    pub fn flush(&mut self) -> bool {
        if self.new.is_empty() && self.new_general.is_empty() {
            return true;
        }
        let Some(path) = self.path.clone() else { return false };
        let general: Vec<&General> = self.new_general.iter().filter_map(|k| self.general.get(k)).collect();
        match guarded(|| save(&path, &self.new, &general)) {
            Ok(()) => {
                self.new_general.clear();
                for (k, a) in std::mem::take(&mut self.new) {
                    self.known.insert(k, answer_text(&a));
                }
                true
            }
            Err(Trouble::Bad(e)) => {
                self.set_aside(&e);
                false
            }
            Err(Trouble::Busy) => {
                self.notes.push(format!("{}: in use; what was learnt is not written", path.display()));
                false
            }
            // A full disk is full the next time, too, and what is open may not be closed: that would look as if another
            // process had it.
            Err(Trouble::Other(e)) => {
                self.notes.push(format!("{}: {e}; what was learnt is not written", path.display()));
                self.path = None;
                false
            }
        }
    }
}

/// Whether a replacement is proven by what the problem says, as `bpf-opt rules verify` does it, with less effort. The
/// problem is what comes back from its text ([`Store::record_only`]).
fn stands_alone(p: &WindowKey, with: &[Op]) -> bool {
    let limits = Limits { conflicts: 2_000, work: 2_000_000, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    // A panic in the prover must not end the run that has the result.
    catch_unwind(AssertUnwindSafe(|| p.prove(with, &options).is_equal())).unwrap_or(false)
}

/// Why the file could not be used.
enum Trouble {
    /// Another process has it open.
    Busy,
    /// It is no store, or a broken one.
    Bad(String),
    /// The system refuses.
    Other(String),
}

impl From<DatabaseError> for Trouble {
    fn from(e: DatabaseError) -> Trouble {
        match e {
            DatabaseError::DatabaseAlreadyOpen => Trouble::Busy,
            DatabaseError::Storage(e) => e.into(),
            DatabaseError::UpgradeRequired(n) => Trouble::Bad(format!("has the old file format {n}")),
            e => Trouble::Bad(e.to_string()),
        }
    }
}

impl From<StorageError> for Trouble {
    fn from(e: StorageError) -> Trouble {
        use std::io::ErrorKind::{InvalidData, UnexpectedEof};
        match e {
            StorageError::Io(e) if !matches!(e.kind(), InvalidData | UnexpectedEof) => Trouble::Other(e.to_string()),
            e => Trouble::Bad(format!("is no rule store, or a broken one ({e})")),
        }
    }
}

/// Runs `f`; a panic of the database over a broken file is one more way to say that it is broken.
fn guarded<T>(f: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| Err(Trouble::Bad("is broken".into())))
}

/// An open file. When the database panics over a broken one, it must not be closed on the way out: that
/// panics again, and a second panic ends the process. The file is then left to the end of the process.
struct Opened(ManuallyDrop<Database>);

impl Opened {
    /// Opens the file for writing, waiting for others.
    fn new(path: &Path) -> Result<Opened, Trouble> {
        Opened::checked(patiently(|| Ok(Database::create(path)?))?)
    }

    /// What the file holds, in memory: a database writes when it is opened and closed, be it only to be read.
    fn copy(bytes: &[u8]) -> Result<Opened, Trouble> {
        let memory = InMemoryBackend::new();
        memory.set_len(bytes.len() as u64).and_then(|()| memory.write(0, bytes)).map_err(system)?;
        Opened::checked(Database::builder().create_with_backend(memory)?)
    }

    /// Compares the checksums.
    fn checked(db: Database) -> Result<Opened, Trouble> {
        let mut db = Opened(ManuallyDrop::new(db));
        match db.0.check_integrity() {
            Ok(true) => Ok(db),
            Ok(false) => Err(broken("its checksums are wrong")),
            Err(e) => Err(e.into()),
        }
    }

    fn close(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

/// Tries until no other process has the file, for as long as one waits for those.
fn patiently<T>(mut f: impl FnMut() -> Result<T, Trouble>) -> Result<T, Trouble> {
    let until = Instant::now() + PATIENCE;
    loop {
        match f() {
            Err(Trouble::Busy) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            other => return other,
        }
    }
}

/// The bytes of the file while nobody writes it.
fn contents(path: &Path) -> Result<Vec<u8>, Trouble> {
    // A pipe might keep us waiting for ever.
    if !path.metadata().map_err(system)?.is_file() {
        return Err(Trouble::Other("is not a regular file".into()));
    }
    let mut file = File::open(path).map_err(system)?;
    // Where there are no locks, a torn copy has wrong checksums.
    patiently(|| match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(Trouble::Busy),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    })?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(system)?;
    Ok(bytes)
}

fn system(e: std::io::Error) -> Trouble {
    Trouble::Other(e.to_string())
}

/// Whether a file was meant to be a store: it begins as one does, holds nothing yet (a run ended while it was made, or the
/// disk was full), or is where nobody else puts files.
fn may_be_a_store(path: &Path) -> bool {
    const MAGIC: &[u8] = b"redb";
    if path.ends_with(DEFAULT_FILE) {
        return true;
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|f| f.take(MAGIC.len() as u64).read_to_end(&mut head));
    read.is_ok() && (head == MAGIC || head.iter().all(|b| *b == 0))
}

fn broken(e: impl std::fmt::Display) -> Trouble {
    Trouble::Bad(format!("is no rule store, or a broken one ({e})"))
}

/// The texts of a table: keys and answers.
type Texts = FxHashMap<String, String>;

fn load(path: &Path) -> Result<(Texts, Texts), Trouble> {
    let bytes = contents(path)?;
    // Nobody has written anything yet.
    if bytes.is_empty() {
        return Ok((Texts::default(), Texts::default()));
    }
    let db = Opened::copy(&bytes)?;
    let txn = ManuallyDrop::new(db.0.begin_read().map_err(broken)?);
    let table = |definition: TableDefinition<&str, &str>| -> Result<Texts, Trouble> {
        let mut known = Texts::default();
        match txn.open_table(definition).map(ManuallyDrop::new) {
            Ok(table) => {
                for entry in table.iter()? {
                    let (k, v) = entry?;
                    known.insert(k.value().to_owned(), v.value().to_owned());
                }
                drop(ManuallyDrop::into_inner(table));
            }
            Err(redb::TableError::TableDoesNotExist(_)) => {}
            Err(e) => return Err(broken(e)),
        }
        Ok(known)
    };
    let (rules, general) = (table(RULES)?, table(GENERAL)?);
    drop(ManuallyDrop::into_inner(txn));
    db.close();
    Ok((rules, general))
}

fn save(path: &Path, new: &BTreeMap<String, RuleBody>, general: &[&General]) -> Result<(), Trouble> {
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(system)?;
    if !path.exists() {
        // Under its name it is there when it is whole, whenever the process ends.
        let made = tempfile::Builder::new()
            .prefix(".rules-")
            // The process's umask applies.
            .permissions(std::fs::Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(system)?;
        write(made.path(), new, general)?;
        if made.persist_noclobber(path).is_ok() {
            return Ok(());
        }
    }
    write(path, new, general)
}

fn write(path: &Path, new: &BTreeMap<String, RuleBody>, general: &[&General]) -> Result<(), Trouble> {
    let db = Opened::new(path)?;
    let txn = ManuallyDrop::new(db.0.begin_write().map_err(broken)?);
    {
        let mut table = ManuallyDrop::new(txn.open_table(RULES).map_err(broken)?);
        for (k, a) in new {
            // Another run may have found something better meanwhile.
            let there = table.get(k.as_str())?.and_then(|v| parse_entry(k, v.value()));
            if there.is_none_or(|r| a.better_than(&r.answer)) {
                table.insert(k.as_str(), answer_text(a).as_str())?;
            }
        }
        drop(ManuallyDrop::into_inner(table));
        let mut table = ManuallyDrop::new(txn.open_table(GENERAL).map_err(broken)?);
        for g in general {
            let k = g.key();
            let there = table.get(k.as_str())?.and_then(|v| parse_general(&k, v.value()));
            if there.is_none_or(|r| g.better_than(&r)) {
                table.insert(k.as_str(), g.answer_text().as_str())?;
            }
        }
        drop(ManuallyDrop::into_inner(table));
    }
    ManuallyDrop::into_inner(txn).commit().map_err(|e| match e {
        redb::CommitError::Storage(e) => Trouble::from(e),
        e => Trouble::Other(e.to_string()),
    })?;
    db.close();
    Ok(())
}
