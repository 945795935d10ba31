//! Every test of the store on real servers.

mod conformance;
mod galera;
mod inbox;
mod mysql_only;
