//! What a run was given: the parent of the inputs that are asked for.

/// An input, as the interpreter ran on it.
pub trait Given {
    /// The bytes of the packet.
    fn packet(&self) -> &[u8];
    /// How many bytes of it are before `data_end`.
    fn linear(&self) -> usize;
    /// The context as it began; fields that are pointers do not count.
    fn context(&self) -> &[u8];
    /// Whether a test run can set this byte of the context.
    fn sets_context(&self, offset: u64) -> bool;
    /// A byte of a section of global data.
    fn data(&self, section: &str, offset: u64) -> u8;
    /// Whether a byte of read-only data is the loader's to set, which no run of what is loaded can.
    fn sets_constant(&self, section: &str, offset: u64) -> bool;
    /// A byte of a map's value; 0 if there is no such element.
    fn value(&self, map: &str, key: &[u8], offset: u64) -> u8;
    /// Whether the packet begins with its Ethernet header, of which the kernel takes the protocol.
    fn has_ethernet(&self) -> bool;
}
