//! A stand-in for MongoDB in tests: its wire protocol in front of PostgreSQL with the DocumentDB extension.
