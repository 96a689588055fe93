//! What a helper takes and what it gives back: classes of arguments, lengths of memory, kinds of results.

/// What a helper does with one argument. Argument numbers count from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arg {
    /// The map the helper works on.
    Map,
    /// Points to `key_size` readable bytes.
    Key,
    /// Points to `value_size` readable bytes, or is null.
    Value,
    /// Points to `value_size` bytes that may be written (and, for bloom filters, are read).
    OutValue,
    /// The program's context.
    Ctx,
    /// Points to memory of the given length, which is read and/or written; may be null.
    Mem {
        /// How long it is.
        len: Len,
        /// The helper reads it.
        read: bool,
        /// The helper may write it.
        write: bool,
    },
    /// Any address; up to the given length is probed, usually kernel memory, legally the stack.
    Probe {
        /// How long it is.
        len: Len,
    },
    /// The length of a memory argument.
    Size,
    /// A plain value.
    Scalar,
    /// A plain value, possibly uninitialized, or a pointer to a string that is read.
    Vararg,
    /// A function of this program.
    Func,
    /// A pointer (or null) that the callback gets.
    CallbackCtx,
    /// A kernel object, lock, timer, dynptr …: treated as escaping.
    Opaque,
}

/// Length of a memory argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Len {
    /// Constant number of bytes.
    Bytes(u32),
    /// The value of argument N.
    Arg(u8),
}

/// What a helper returns in r0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ret {
    /// A number.
    Scalar,
    /// Nothing: r0 is not readable.
    Void,
    /// Null, or a pointer to a value of the map argument.
    MapValueOrNull,
    /// Null, or a pointer to fresh memory.
    MemOrNull,
    /// Null, or a socket.
    SockOrNull,
    /// Any other pointer, maybe null.
    Ptr,
    /// Null, or a slice of the memory that a dynptr describes: of a map value, a reservation, the packet.
    Slice,
    /// Returns only on failure, with a number (`tail_call`).
    NoReturnOnSuccess,
    /// Not known.
    Unknown,
}
