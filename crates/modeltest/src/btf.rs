//! A writer of type information, as small as callbacks, locks, timers and kernel pointers need it.
//!
//! Source of the format: `include/uapi/linux/btf.h`. Types are numbered from 1 in the order they are added.

/// Types being collected.
#[derive(Debug)]
pub struct Types {
    strings: Vec<u8>,
    types: Vec<u8>,
    count: u32,
}

impl Default for Types {
    fn default() -> Self {
        Types { strings: vec![0], types: Vec::new(), count: 0 }
    }
}

impl Types {
    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes().chain([0]));
        at
    }

    /// `struct btf_type`: name, `kind` with number of members, size or type; then what belongs to the kind.
    fn add(&mut self, name: &str, kind: u32, members: u32, size_or_type: u32, more: &[u32]) -> u32 {
        let name = self.string(name);
        for word in [name, kind << 24 | members, size_or_type].iter().chain(more) {
            self.types.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    /// A signed integer of `bytes` bytes.
    pub fn int(&mut self, name: &str, bytes: u32) -> u32 {
        self.add(name, 1, 0, bytes, &[(1 << 24) | (bytes * 8)])
    }

    /// A pointer.
    pub fn pointer(&mut self, to: u32) -> u32 {
        self.add("", 2, 0, to, &[])
    }

    /// A structure; members are name, type and offset in bits.
    pub fn structure(&mut self, name: &str, bytes: u32, members: &[(&str, u32, u32)]) -> u32 {
        let words: Vec<u32> = members.iter().flat_map(|(n, t, at)| [self.string(n), *t, *at]).collect();
        self.add(name, 4, members.len() as u32, bytes, &words)
    }

    /// A type tag, such as `kptr`.
    pub fn tag(&mut self, name: &str, to: u32) -> u32 {
        self.add(name, 18, 0, to, &[])
    }

    /// A static function that takes these parameters and returns `result`.
    pub fn function(&mut self, name: &str, result: u32, parameters: &[u32]) -> u32 {
        let words: Vec<u32> = parameters.iter().flat_map(|t| [self.string("p"), *t]).collect();
        let proto = self.add("", 13, parameters.len() as u32, result, &words);
        self.add(name, 12, 0, proto, &[])
    }

    /// Header, types, strings.
    pub fn encode(&self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut out = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, strings] {
            out.extend(u32::to_le_bytes(word));
        }
        out.extend(&self.types);
        out.extend(&self.strings);
        out
    }
}
