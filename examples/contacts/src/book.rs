//! The book of contacts: reads and writes contacts in units of work, with version checks.

use outbox::prelude::*;
use sqlx::Row;

use crate::contact::Contact;

/// A unit of work on SQLite.
pub(crate) type Work = UnitOfWork<SqliteStore>;

/// Creates the table.
pub(crate) async fn create_table(store: &SqliteStore) -> Result<(), sqlx::Error> {
    sqlx::query(
        "create table if not exists contacts (id integer primary key, name text not null, email text not null, version integer not null)",
    )
    .execute(store.pool())
    .await?;
    Ok(())
}

/// Reads a contact with its version.
pub(crate) async fn read(work: &mut Work, id: i64) -> Result<Contact, HandlerError> {
    let row = sqlx::query("select name, email, version from contacts where id = ?")
        .bind(id)
        .fetch_optional(work.tx())
        .await?
        .ok_or_else(|| format!("there is no contact {id}"))?;
    let (name, email, version) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok(Contact { id, name, email, version, events: EventLog::new() })
}

// ANCHOR: write
/// Writes a contact if its version is still the one that was read, and collects its recorded
/// events.
pub(crate) async fn write(work: &mut Work, contact: &mut Contact) -> Result<(), HandlerError> {
    let statement = if contact.version == 0 {
        sqlx::query("insert into contacts (name, email, version, id) values (?, ?, ? + 1, ?)")
    } else {
        sqlx::query(
            "update contacts set name = ?, email = ?, version = version + 1 where version = ? and id = ?",
        )
    };
    let done = statement
        .bind(&contact.name)
        .bind(&contact.email)
        .bind(contact.version)
        .bind(contact.id)
        .execute(work.tx())
        .await?;
    VersionMismatch::check(done.rows_affected(), format!("contact {}", contact.id), contact.version)?;
    contact.version += 1;
    work.collect(contact)?;
    Ok(())
}
// ANCHOR_END: write

/// Adds a contact.
pub(crate) async fn add(
    mediator: &Mediator<SqliteStore>,
    id: i64,
    name: &str,
    email: &str,
) -> Result<(), WorkError> {
    mediator.run(async |work| write(work, &mut Contact::new(id, name, email)).await).await
}

// ANCHOR: change
/// Reads a contact, changes it, and writes it. On a version conflict, all of that happens again.
pub(crate) async fn change(
    mediator: &Mediator<SqliteStore>,
    id: i64,
    mut how: impl FnMut(&mut Contact) -> Result<(), HandlerError>,
) -> Result<(), WorkError> {
    mediator
        .run(async |work| {
            let mut contact = read(work, id).await?;
            how(&mut contact)?;
            write(work, &mut contact).await
        })
        .await
}
// ANCHOR_END: change

/// Renames a contact that a user has seen in this version, for example in a form. Rejects an older
/// version, because a retry would not help.
pub(crate) async fn rename_as_seen(
    mediator: &Mediator<SqliteStore>,
    id: i64,
    version: i64,
    name: &str,
) -> Result<(), WorkError> {
    let mut work = mediator.begin().await?;
    let renamed = async {
        let mut contact = read(&mut work, id).await?;
        contact.version = version;
        contact.rename(name);
        write(&mut work, &mut contact).await
    };
    match renamed.await {
        Ok(()) => work.commit().await,
        Err(error) => {
            work.rollback().await;
            Err(WorkError::Failed(error))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use outbox_testkit::Scenario;

    use super::*;
    use crate::contact::{ContactEvent, NotAnAddress};

    /// A book in a database of its own, watched by a scenario. SQLite uses its own threads, so the
    /// time is real here.
    async fn book() -> (Mediator<SqliteStore>, Scenario, RelayHandle) {
        let store = SqliteStore::in_memory().await.unwrap();
        create_table(&store).await.unwrap();
        let transport = MemoryTransport::new();
        let scenario = Scenario::new(transport.clone(), ["contacts"]).await;
        let relay = Relay::builder(store.clone(), transport).start().await.unwrap();
        (Mediator::new(Outbox::new(store)), scenario, relay)
    }

    fn added() -> ContactEvent {
        ContactEvent::Added { id: 1, name: "Ann".into(), email: "ann@old".into() }
    }

    fn renamed(name: &str) -> ContactEvent {
        ContactEvent::Renamed { id: 1, name: name.into() }
    }

    #[tokio::test]
    async fn what_changes_is_told_in_its_order_and_repeats_are_no_news() {
        let (mediator, mut scenario, relay) = book().await;
        scenario.when("Ann is added", add(&mediator, 1, "Ann", "ann@old")).await.unwrap();
        let change = change(&mediator, 1, |ann| {
            ann.rename("Anna");
            ann.change_email("ann@new")?;
            ann.rename("Hannah");
            Ok(())
        });
        scenario.when("she moves and marries", change).await.unwrap();
        let moved = ContactEvent::EmailChanged { id: 1, old: "ann@old".into(), new: "ann@new".into() };
        scenario.expect(&[&added(), &moved, &renamed("Hannah")]).await;
        scenario.repeat_all().await;
        let rename = super::change(&mediator, 1, |ann| {
            ann.rename("Ann");
            Ok(())
        });
        scenario.when("she is renamed", rename).await.unwrap();
        scenario.expect(&[&renamed("Ann")]).await;
        assert!(relay.stop(Duration::from_secs(120)).await);
    }

    #[tokio::test]
    async fn who_was_slower_reads_again_and_nothing_is_lost() {
        let (mediator, mut scenario, relay) = book().await;
        add(&mediator, 1, "Ann", "ann@old").await.unwrap();
        let attempts = AtomicU32::new(0);
        let change = change(&mediator, 1, |ann| {
            if attempts.fetch_add(1, Ordering::SeqCst) == 0 {
                ann.version += 7; // differs from the version in the database
            }
            ann.rename("Anna");
            Ok(())
        });
        change.await.unwrap();
        assert_eq!(attempts.into_inner(), 2);
        scenario.expect(&[&added(), &renamed("Anna")]).await;
        assert!(relay.stop(Duration::from_secs(120)).await);
    }

    #[tokio::test]
    async fn a_version_that_was_seen_long_ago_is_refused_and_nothing_is_told() {
        let (mediator, mut scenario, relay) = book().await;
        add(&mediator, 1, "Ann", "ann@old").await.unwrap();
        rename_as_seen(&mediator, 1, 1, "Anna").await.unwrap();
        let error = rename_as_seen(&mediator, 1, 1, "Hannah").await.unwrap_err();
        assert_eq!(error.find::<VersionMismatch>().unwrap().expected, 1);
        let error = change(&mediator, 1, |ann| Ok(ann.change_email("nowhere")?)).await.unwrap_err();
        assert!(error.find::<NotAnAddress>().is_some(), "{error}");
        rename_as_seen(&mediator, 1, 2, "Last").await.unwrap();
        scenario.expect(&[&added(), &renamed("Anna"), &renamed("Last")]).await;
        assert!(relay.stop(Duration::from_secs(120)).await);
    }
}
