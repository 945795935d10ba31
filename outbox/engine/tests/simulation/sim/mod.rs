//! A world from a seed: writers, relays, operators and a broker, with everything that can go wrong
//! between them.
//!
//! It runs on one thread in paused time, so that a seed is a run, the same again to the last step.
//! First there is chaos for a while; then all faults stop, and within a bound of virtual time
//! everything must have been delivered. The history of what was committed and what the broker was
//! given is judged by the checker of the test kit: nothing may be lost, invented, or first
//! delivered out of order.

mod broker;
mod deaths;
mod fleet;
mod held;
mod line;
mod link;
mod operators;
mod plan;
mod tally;
mod trace;
mod world;
mod writers;

#[allow(unused_imports, reason = "not every test that runs worlds looks at it")]
pub(crate) use tally::ALL;
pub(crate) use world::run;
