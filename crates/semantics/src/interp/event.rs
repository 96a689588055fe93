//! The trace of calls, by which two executions are compared.

/// The value of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgValue {
    /// A number, as far as the callee looks at it, or a pointer that is not into the stack.
    Plain(u64),
    /// A pointer into the stack to memory that the callee reads or writes: where in the stack is private, the
    /// bytes read through it are in [`Event::memory`].
    StackBuffer,
    /// The register had no value.
    Uninitialised,
}

/// One call that left the program. Equal events mean that the callee could not tell the difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The helper's name, or the text of the call.
    pub call: String,
    /// The arguments the callee has; all five where its prototype is not known.
    pub args: Vec<ArgValue>,
    /// What the callee reads through its arguments: the argument's number, from 1, and the bytes.
    pub memory: Vec<(usize, Vec<u8>)>,
}
