//! Every test of the facade.

mod bad_input;
mod facade;
