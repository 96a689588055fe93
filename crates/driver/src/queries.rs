//! A folder that gets every query of the prover as an SMT-LIB file.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bpf_prove::Recorder;
use bpf_prove::smt::Query;

/// A folder of queries, numbered in the order in which they were decided, none of them twice.
pub struct QueryFolder {
    written: Arc<Mutex<Written>>,
}

struct Written {
    folder: PathBuf,
    seen: HashSet<u64>,
    /// The first file that could not be written; nothing is written after it.
    failed: Option<std::io::Error>,
}

impl Written {
    fn see(&mut self, query: &Query) {
        let mut h = DefaultHasher::new();
        (query.formula(), query.status).hash(&mut h);
        if self.failed.is_some() || !self.seen.insert(h.finish()) {
            return;
        }
        let path = self.folder.join(format!("{:06}.smt2", self.seen.len()));
        if let Err(e) = std::fs::write(&path, query.file()) {
            self.failed = Some(std::io::Error::new(e.kind(), format!("{}: {e}", path.display())));
        }
    }
}

impl QueryFolder {
    /// The folder at `path`, made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(path: &Path) -> std::io::Result<QueryFolder> {
        std::fs::create_dir_all(path)?;
        let written = Written { folder: path.to_owned(), seen: HashSet::new(), failed: None };
        Ok(QueryFolder { written: Arc::new(Mutex::new(written)) })
    }

    /// What writes the files, for [`Options::queries`](crate::Options).
    pub fn recorder(&self) -> Recorder {
        let written = self.written.clone();
        Recorder::new(move |query| {
            if let Ok(mut w) = written.lock() {
                w.see(query);
            }
        })
    }

    /// How many files there are now.
    ///
    /// # Errors
    /// If one could not be written.
    pub fn finish(self) -> std::io::Result<usize> {
        let Ok(mut w) = self.written.lock() else { return Err(std::io::Error::other("a thread broke off")) };
        w.failed.take().map_or(Ok(w.seen.len()), Err)
    }
}
