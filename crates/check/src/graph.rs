//! Which value was computed from which, along all paths walked.
//!
//! The kernel remembers of a number only whether its bounds mattered ("precise"), and finds that out by walking back
//! through the instructions of a path. Here each computed number has a name and the names of its operands, so that the
//! walk back is a walk over names. Whether a number mattered *after* a certain remembered state is answered by time:
//! the walk is depth first, so what happens below a state happens after it was remembered.

/// All values computed so far. Name 0 is no value: nothing is known of it, and its bounds never matter.
#[derive(Debug)]
pub struct Values {
    values: Vec<Value>,
    /// States remembered so far.
    now: u32,
}

#[derive(Clone, Copy, Debug)]
struct Value {
    operands: (u32, u32),
    /// When its bounds mattered last; 0 for never.
    needed: u32,
    /// How often that was noted.
    times: u8,
}

/// A value noted that often matters for ever, so that long chains of values are not walked again and again.
const OFTEN: u8 = 8;
const FOR_EVER: u32 = u32::MAX;

impl Default for Values {
    fn default() -> Self {
        Values { values: vec![Value { operands: (0, 0), needed: 0, times: 0 }], now: 1 }
    }
}

impl Values {
    /// A value computed from others; 0 for no operand.
    pub fn new_value(&mut self, a: u32, b: u32) -> u32 {
        self.values.push(Value { operands: (a, b), needed: 0, times: 0 });
        (self.values.len() - 1) as u32
    }

    /// A state is remembered: from now on time is later than the answer.
    pub fn tick(&mut self) -> u32 {
        self.now += 1;
        self.now - 1
    }

    /// Did its bounds matter after a state remembered at `time`?
    pub fn is_precise(&self, v: u32, time: u32) -> bool {
        self.values.get(v as usize).is_some_and(|v| v.needed > time)
    }

    /// Its bounds matter, and so do those of what it was computed from.
    pub fn need(&mut self, v: u32) {
        let mut work = vec![(v, false)];
        while let Some((v, always)) = work.pop() {
            let Some(value) = self.values.get_mut(v as usize).filter(|_| v != 0) else { continue };
            if value.needed == FOR_EVER || (value.needed == self.now && !always) {
                continue;
            }
            value.times += 1;
            let always = always || value.times >= OFTEN;
            value.needed = if always { FOR_EVER } else { self.now };
            let (a, b) = value.operands;
            work.extend([a, b].into_iter().filter(|o| *o != 0).map(|o| (o, always)));
        }
    }
}
