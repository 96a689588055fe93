//! The JSON reports on many objects, kept in a file until all are there, so that memory does not grow with them.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use serde::ser::{Error, Serialize, SerializeSeq, Serializer};
use serde_json::value::RawValue;

/// Reports by the number of the object.
pub struct Spool {
    file: File,
    end: u64,
    /// Where each is, and how long.
    places: Vec<Option<(u64, usize)>>,
    /// Used again for each.
    buffer: RefCell<Vec<u8>>,
}

impl Spool {
    /// Of so many objects.
    ///
    /// # Errors
    /// If there is no place for temporary files.
    pub fn new(objects: usize) -> io::Result<Spool> {
        Ok(Spool { file: tempfile::tempfile()?, end: 0, places: vec![None; objects], buffer: RefCell::default() })
    }

    /// Keeps the report on an object.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put(&mut self, object: usize, report: &[u8]) -> io::Result<()> {
        self.file.write_all(report)?;
        if let Some(place) = self.places.get_mut(object) {
            *place = Some((self.end, report.len()));
        }
        self.end += report.len() as u64;
        Ok(())
    }
}

/// As a list, in the order of the objects.
impl Serialize for Spool {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.places.len()))?;
        let mut buffer = self.buffer.borrow_mut();
        for &(at, length) in self.places.iter().flatten() {
            buffer.resize(length, 0);
            self.file.read_exact_at(&mut buffer, at).map_err(S::Error::custom)?;
            let report: &RawValue = serde_json::from_slice(&buffer).map_err(S::Error::custom)?;
            list.serialize_element(report)?;
        }
        list.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_come_back_in_the_order_of_the_objects() {
        let mut spool = Spool::new(3).expect("a file");
        for (object, report) in [(2, r#"{"a":2}"#), (0, r#"{"a":[0]}"#), (1, "null")] {
            spool.put(object, report.as_bytes()).expect("written");
        }
        assert_eq!(serde_json::to_string(&spool).expect("JSON"), r#"[{"a":[0]},null,{"a":2}]"#);
    }
}
