//! Every test of the transport on real servers.

mod conformance;
mod redis_only;
