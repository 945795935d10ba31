//! All tests of the engine, except those that need a process of their own.

extern crate outbox_contract as outbox;

mod forgetting;
mod inbox;
mod pool;
mod promises;
mod relay;
mod scrape;
mod service;
mod unit_of_work;
