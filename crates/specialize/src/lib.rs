//! Objects for declared constants and frozen maps.
//!
//! A user declares what will not change: values of variables in `.rodata`, of kconfig variables, the elements of maps.
//! [`specialize`] writes an object in which these are constants: loads of them become numbers, and lookups in the maps
//! become lookups in tables that stand in a read-only section of their own. That is all it does; what the constants
//! decide is left to the optimizer, which proves its changes as of any other object.
//!
//! What is done here is small, and the same bytes come out whoever asks: so a verifier does it once more with the
//! original, and proves the rest. What makes it right ([`Declared`] says what is assumed):
//!
//! - a load whose address is known to lie in declared bytes gives these bytes;
//! - a pointer that a lookup in a declared map gives leads to one of its elements; nobody writes them, as the object is
//!   searched for whoever could (`readers`);
//! - a lookup in a table finds a key only where all words of the key are equal to those of a row, so that it finds no
//!   keys but those of rows; and for each of these, and for each element of the map, its code is run (`certificate`).
//!
//! | module | holds |
//! |---|---|
//! | `declared` | what is assumed, as the user says it and as the object notes it |
//! | `constants` | loads that give constants |
//! | `readers` | what an object does with a map |
//! | `table` | rows and perfect hashes of the elements of a map |
//! | `lookup` | code that looks a key up in a table |
//! | `certificate` | running that code on all keys that count |
//! | `write` | new bodies, the tables, and the note |

mod certificate;
mod constants;
mod declared;
mod error;
mod lookup;
mod readers;
mod specialize;
mod table;
mod write;

pub use declared::{Contents, Declared, Element, Form, Given, NOTE_OWNER, NOTE_SECTION};
pub use error::SpecializeError;
pub use specialize::{Done, MapUse, Stays, specialize};
