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

use outbox::backend::Received;
use outbox::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = SqliteStore::in_memory().await?;
    book::create_table(&store).await?;
    let transport = MemoryTransport::new();
    let newsletter =
        transport.subscribe(Subscription::new("newsletter".parse()?, ["contacts".parse()?])).await?;
    let relay = Relay::builder(store.clone(), transport).start().await?;
    let mediator = Mediator::new(Outbox::new(store));

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

    let mut left = 5;
    while left > 0 {
        let Received::Deliveries(deliveries) = newsletter.next().await? else { continue };
        for delivery in deliveries {
            match delivery.message {
                Ok(message) => {
                    println!("{}: {}", message.event_type, String::from_utf8_lossy(&message.payload));
                }
                Err(junk) => eprintln!("skipped: {junk}"),
            }
            newsletter.acknowledge(&[delivery.tag]).await?;
            left -= 1;
        }
    }
    if relay.stop(Duration::from_secs(60)).await {
        Ok(())
    } else {
        Err("the relay did not finish in time".into())
    }
}
