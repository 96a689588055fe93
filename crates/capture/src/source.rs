//! The bytes of a file or of the standard input, decompressed, with the place reached.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::GzDecoder;

use crate::error::{ErrorKind, Fault};

/// First bytes of what gzip wrote (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// How much is read from the file at a time, in bytes.
const BUFFER: usize = 1 << 18;
/// How much room is made at a time for what a file claims to hold, in bytes: a wrong length costs no more.
const STEP: usize = 1 << 16;

/// Bytes from some input, in order.
pub struct Source {
    input: Input,
    offset: u64,
    size: Option<u64>,
}

enum Input {
    Plain(Raw),
    Gzip(Box<BufReader<Members>>),
}

/// The first bytes, which have been looked at, and the rest.
type Raw = io::Chain<Cursor<Vec<u8>>, BufReader<Counted>>;

/// An input that counts what was taken from it.
struct Counted {
    input: Box<dyn Read + Send>,
    taken: u64,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let taken = self.input.read(buffer)?;
        self.taken += taken as u64;
        Ok(taken)
    }
}

fn taken(raw: &Raw) -> u64 {
    raw.get_ref().1.get_ref().taken
}

/// What gzip wrote: members one behind the other, and zeros behind them that fill a block of a tape, which gzip ignores.
struct Members {
    /// The member at hand; `None` behind the last one.
    decoder: Option<GzDecoder<Raw>>,
    /// What was taken in all.
    all: u64,
}

impl Members {
    fn new(raw: Raw) -> Self {
        Self { decoder: Some(GzDecoder::new(raw)), all: 0 }
    }

    fn taken(&self) -> u64 {
        self.decoder.as_ref().map_or(self.all, |decoder| taken(decoder.get_ref()))
    }
}

impl Read for Members {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(decoder) = &mut self.decoder else { return Ok(0) };
            let read = decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            // Interruptions leave the decoder at its end, so that this is done again.
            let raw = decoder.get_mut();
            let is_over = loop {
                let there = raw.fill_buf()?;
                let (zeros, length) = (there.iter().take_while(|byte| **byte == 0).count(), there.len());
                raw.consume(zeros);
                if length == 0 || zeros < length {
                    break length == 0;
                }
            };
            self.all = taken(raw);
            self.decoder = self.decoder.take().filter(|_| !is_over).map(|decoder| GzDecoder::new(decoder.into_inner()));
        }
    }
}

impl Source {
    /// The file at `path`; `-` is the standard input.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Self::new(Box::new(io::stdin()), None);
        }
        let file = File::open(path)?;
        let data = file.metadata()?;
        Self::new(Box::new(file), data.is_file().then_some(data.len()))
    }

    /// What `input` gives, of `size` bytes if that is known.
    pub fn new(input: Box<dyn Read + Send>, size: Option<u64>) -> io::Result<Self> {
        let mut input = BufReader::with_capacity(BUFFER, Counted { input, taken: 0 });
        let mut start = Vec::new();
        input.by_ref().take(GZIP.len() as u64).read_to_end(&mut start)?;
        let compressed = start == GZIP;
        let raw = Cursor::new(start).chain(input);
        let input = if compressed {
            Input::Gzip(Box::new(BufReader::with_capacity(BUFFER, Members::new(raw))))
        } else {
            Input::Plain(raw)
        };
        Ok(Self { input, offset: 0, size })
    }

    /// Bytes handed out, from the beginning.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes taken from the input, which may be compressed; a buffer ahead of what was handed out.
    pub fn position(&self) -> u64 {
        match &self.input {
            Input::Plain(raw) => taken(raw),
            Input::Gzip(members) => members.get_ref().taken(),
        }
    }

    /// Length of the file in bytes, if it is one.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Appends the next `length` bytes to `buffer`; fewer at the end of the input only. Says how many.
    pub fn append(&mut self, buffer: &mut Vec<u8>, length: usize) -> Result<usize, Fault> {
        let start = buffer.len();
        while buffer.len() - start < length {
            let from = buffer.len();
            buffer.resize(from + STEP.min(length - (from - start)), 0);
            let read = self.fill(&mut buffer[from..]);
            let got = read.map_err(|why| Fault { offset: self.offset, kind: ErrorKind::Io(why) })?;
            if from + got < buffer.len() {
                buffer.truncate(from + got);
                break;
            }
        }
        Ok(buffer.len() - start)
    }

    /// Appends the next `length` bytes to `buffer`.
    ///
    /// # Errors
    /// [`ErrorKind::Truncated`] if there are fewer.
    pub fn append_all(&mut self, buffer: &mut Vec<u8>, length: usize) -> Result<(), Fault> {
        let found = self.append(buffer, length)?;
        if found == length { Ok(()) } else { Err(self.truncated(length, found)) }
    }

    /// Leaves out the next `length` bytes; says how many of them there are.
    pub fn skip(&mut self, length: usize) -> Result<usize, Fault> {
        let mut left = length;
        while left > 0 {
            let there = match self.reader().fill_buf() {
                Ok(there) => there.len().min(left),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                Err(why) => return Err(Fault { offset: self.offset, kind: ErrorKind::Io(why) }),
            };
            if there == 0 {
                break;
            }
            self.reader().consume(there);
            self.offset += there as u64;
            left -= there;
        }
        Ok(length - left)
    }

    /// The fault that `needed` bytes should be there and `found` are, up to here.
    pub fn truncated(&self, needed: usize, found: usize) -> Fault {
        Fault { offset: self.offset, kind: ErrorKind::Truncated { needed: needed as u64, found: found as u64 } }
    }

    /// Fills `buffer` as far as the input goes; says how far.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.reader().read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(read) => {
                    filled += read;
                    self.offset += read as u64;
                }
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(filled)
    }

    fn reader(&mut self) -> &mut dyn BufRead {
        match &mut self.input {
            Input::Plain(raw) => raw,
            Input::Gzip(decoder) => decoder,
        }
    }
}
