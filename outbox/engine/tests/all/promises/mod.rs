//! Promises, one by one. Each file covers one subject, and the name of each test states what must
//! hold.
//!
//! All run in paused time on one thread. The simulation checks the same promises together.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

#[allow(dead_code, reason = "the simulation uses all of it")]
#[path = "../../simulation/sim/deaths.rs"]
mod deaths;
#[allow(dead_code, reason = "the simulation uses all of it")]
#[path = "../../simulation/sim/held.rs"]
mod held;
#[allow(dead_code, reason = "the simulation uses all of it")]
#[path = "../../simulation/sim/line.rs"]
mod line;
#[path = "../../simulation/sim/link.rs"]
mod link;
#[allow(dead_code, reason = "the simulation uses all of it")]
#[path = "../../simulation/sim/tally.rs"]
mod tally;
#[allow(dead_code, reason = "the simulation uses all of it")]
#[path = "../../simulation/sim/trace.rs"]
mod trace;

mod below;
mod bounds;
mod confirmation;
mod containment;
mod crashes;
mod deep;
mod fence;
mod hanging;
mod health;
mod marks;
mod metrics;
mod order;
mod retries;
mod retry_rules;
mod settling;
mod sharing;
mod slow;
mod start;
mod stop;
mod streams;
pub(crate) mod support;
