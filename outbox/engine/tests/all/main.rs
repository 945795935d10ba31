//! Every test of the engine, but those that need a process of their own.

extern crate outbox_contract as outbox;

mod inbox;
mod promises;
mod relay;
mod unit_of_work;
