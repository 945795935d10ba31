//! Every example is run as a user runs it, and does what it says.

mod orders;
mod program;
mod quick_start;
