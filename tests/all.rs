//! The suites that need several parts of the workspace at once, and no program beside them.

mod any_language;
mod below;
mod failover;
mod galera;
mod inbox;
mod matrix;
mod pgpool;
mod retry_rules;
mod settings;
mod unit_of_work;
mod wakeups;
