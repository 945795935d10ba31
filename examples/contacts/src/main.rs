//! `contacts`: an entity that records changes of name and e-mail address, with version checks.
//!
//! A unit of work reads, changes and writes a contact. The contact records events as it changes;
//! they commit with it, and are then sent. Two people who change one contact at once do not
//! overwrite each other: the slower one reads again.
//!
//! `cargo run -p contacts`

mod book;
mod contact;

use std::error::Error;
use std::time::Duration;

use outbox::prelude::*;

use contact::ContactEvent;

/// Maximum time that the program waits for the newsletter.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells the readers of the newsletter.
async fn tell(event: ContactEvent, _: &mut HandlerContext<'_, SqliteStore>) -> Result<(), HandlerError> {
    println!("{event:?}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = SqliteStore::in_memory().await?;
    book::create_table(&store).await?;
    let service = Service::builder("contacts", store, MemoryTransport::new())
        .inbox("newsletter", |inbox| inbox.on(tell))
        .start()
        .await?;
    let mediator = Mediator::new(service.outbox().clone());

    book::add(&mediator, 1, "Ann", "ann@old.example").await?;
    book::change(&mediator, 1, |ann| {
        ann.rename("Anna");
        ann.change_email("ann@new.example")?;
        ann.rename("Hannah"); // replaces the event for Anna
        Ok(())
    })
    .await?;
    // Two changes at once: both are in effect afterwards.
    let (one, other) = tokio::join!(
        book::change(&mediator, 1, |ann| {
            let title = format!("Dr. {}", ann.name);
            ann.rename(&title);
            Ok(())
        }),
        book::change(&mediator, 1, |ann| Ok(ann.change_email("hannah@new.example")?)),
    );
    one?;
    other?;
    // A user had the form open all the while.
    if let Err(error) = book::rename_as_seen(&mediator, 1, 1, "Annie").await {
        println!("refused: {error}");
    }

    let all_told = async {
        while service.inbox("newsletter").is_none_or(|newsletter| newsletter.stats().handled < 5) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    service.run_until(tokio::time::timeout(PATIENCE, all_told)).await?;
    Ok(())
}
