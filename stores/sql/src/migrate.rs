//! Migrations: the steps from one version of the tables to the next.

use outbox_contract::{StoreError, StoreErrorKind};

/// One step from one version of the tables to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The version after it, from 1.
    pub version: i64,
    /// Its purpose, in a word.
    pub name: &'static str,
    /// Its statements. The last one records the version, so that any migration tool can run it.
    pub sql: &'static str,
}

impl Migration {
    /// Creates a migration.
    #[must_use]
    pub const fn new(version: i64, name: &'static str, sql: &'static str) -> Self {
        Self { version, name, sql }
    }

    /// Logs that the migration is done.
    pub fn done(&self) {
        let Self { version, name, .. } = self;
        tracing::info!(version, name, "the tables of the outbox were migrated");
    }

    /// Returns the error of a migration that the existing tables do not fit.
    #[must_use]
    pub fn conflicts(&self, operation: &'static str, remedy: &str) -> StoreError {
        let words =
            format!("migration {:04}_{} conflicts with the existing tables{remedy}", self.version, self.name);
        StoreError::new(StoreErrorKind::SchemaAltered, operation, words)
    }
}

/// Every migration of a store, in order. Never changed once released.
#[derive(Clone, Copy, Debug)]
pub struct Migrations(pub &'static [Migration]);

impl Migrations {
    /// Returns the version that the program needs.
    #[must_use]
    pub const fn needed(&self) -> i64 {
        match self.0.last() {
            Some(last) => last.version,
            None => 0,
        }
    }

    /// Returns the migrations that tables of this version lack.
    ///
    /// # Errors
    ///
    /// [`SchemaTooNew`](StoreErrorKind::SchemaTooNew): the tables are newer than the program.
    pub fn pending(&self, operation: &'static str, version: i64) -> Result<&'static [Migration], StoreError> {
        if version > self.needed() {
            let words = format!(
                "the tables have version {version}, and this program supports {}; upgrade the program",
                self.needed()
            );
            return Err(StoreError::new(StoreErrorKind::SchemaTooNew, operation, words));
        }
        let from = self.0.partition_point(|migration| migration.version <= version);
        Ok(&self.0[from..])
    }

    /// Checks that tables of this version lack no migration.
    ///
    /// # Errors
    ///
    /// As [`pending`](Self::pending), and [`NotMigrated`](StoreErrorKind::NotMigrated), with this
    /// remedy.
    pub fn check(
        &self,
        operation: &'static str,
        version: i64,
        remedy: &'static str,
    ) -> Result<(), StoreError> {
        if self.pending(operation, version)?.is_empty() {
            return Ok(());
        }
        Err(StoreError::new(StoreErrorKind::NotMigrated, operation, remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIGRATIONS: Migrations = Migrations(&[Migration::new(1, "one", ""), Migration::new(2, "two", "")]);

    #[test]
    fn what_is_missing_is_pending() {
        let names = |version| {
            let pending = MIGRATIONS.pending("migrate", version).unwrap();
            pending.iter().map(|migration| migration.name).collect::<Vec<_>>()
        };
        assert_eq!((names(0), names(1), names(2)), (vec!["one", "two"], vec!["two"], vec![]));
    }

    #[test]
    fn tables_are_too_old_or_too_new() {
        let kind =
            |version| MIGRATIONS.check("check", version, "call `migrate`").map_err(|error| error.kind());
        assert_eq!(kind(1), Err(StoreErrorKind::NotMigrated));
        assert_eq!(kind(2), Ok(()));
        assert_eq!(kind(3), Err(StoreErrorKind::SchemaTooNew));
    }
}
