#![doc = include_str!("../README.md")]

pub mod store_suite;
