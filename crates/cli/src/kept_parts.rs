//! Results of functions (`opt --parts DIR`) as files of a folder: `NAME.json` for each, complete or not there.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use bpf_driver::{Part, Parts};

/// A folder of them.
#[derive(Debug)]
pub struct KeptParts(PathBuf);

impl KeptParts {
    /// Those below this folder, which is made when it is needed.
    pub fn below(folder: &Path) -> KeptParts {
        KeptParts(folder.to_owned())
    }

    fn write(&self, name: &str, part: &Part) -> std::io::Result<()> {
        fs::create_dir_all(&self.0)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.0)?;
        serde_json::to_writer(&mut file, part)?;
        file.flush()?;
        file.persist(self.0.join(format!("{name}.json")))?;
        Ok(())
    }
}

impl Parts for KeptParts {
    fn get(&self, name: &str) -> Option<Part> {
        let bytes = fs::read(self.0.join(format!("{name}.json"))).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    fn put(&self, name: &str, part: &Part) {
        // What is not kept is made again.
        if let Err(e) = self.write(name, part) {
            crate::files::complain(format!(
                "bpf-opt: warning: {}: {e}; the result of a function is not kept",
                self.0.display()
            ));
        }
    }
}
