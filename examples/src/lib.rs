//! Programs to copy from, every one run by the tests.

pub mod transports;

// Parts of examples that have tests of their own. They are run from here: an example that cargo takes for a test is not built as a program
// by `cargo test`, and then there would be nothing to run as a user does.
#[cfg(all(test, feature = "sqlite"))]
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../orders"]
mod orders {
    pub(crate) mod databases;
    pub(crate) mod generate;
    pub(crate) mod input;
    pub(crate) mod ledger;
    pub(crate) mod progress;
    pub(crate) mod shop;
}
#[cfg(all(test, feature = "sqlite"))]
use orders::{databases, generate, input, progress, shop};

// What a program calls this crate.
#[cfg(all(test, feature = "sqlite"))]
extern crate self as outbox_examples;

#[cfg(all(test, feature = "sqlite"))]
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../contacts/book.rs"]
mod book;
#[cfg(all(test, feature = "sqlite"))]
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../contacts/contact.rs"]
mod contact;
#[cfg(all(test, feature = "sqlite"))]
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../modular_monolith/database.rs"]
mod database;
#[cfg(all(test, feature = "sqlite"))]
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../modular_monolith/sales.rs"]
mod sales;
#[cfg(all(test, feature = "sqlite"))]
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../modular_monolith/shipping.rs"]
mod shipping;
