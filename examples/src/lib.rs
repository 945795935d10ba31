//! Programs to copy from, every one run by the tests.

pub mod transports;

// Parts of examples that have tests of their own. They are run from here: an example that cargo takes for a test is not built as a program
// by `cargo test`, and then there would be nothing to run as a user does.
#[cfg(all(test, feature = "sqlite"))]
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../orders/generate.rs"]
mod generate;
#[cfg(all(test, feature = "sqlite"))]
#[allow(dead_code, reason = "the program uses the rest")]
#[path = "../orders/input.rs"]
mod input;

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
