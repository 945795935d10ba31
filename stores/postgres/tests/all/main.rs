//! Every test of the store on real servers.

mod conformance;
mod inbox;
mod postgres_only;
