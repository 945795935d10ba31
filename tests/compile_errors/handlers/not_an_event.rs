//! A handler of a type that is no event.

use outbox_engine::{HandlerContext, HandlerError, Inbox};
use outbox_store_memory::MemoryStore;
use outbox_testkit::Feed;

#[derive(serde::Deserialize)]
struct OrderPlaced;

async fn handle(_: OrderPlaced, _: &mut HandlerContext<'_, MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    let _inbox = Inbox::builder(MemoryStore::new(), Feed::new()).on(handle);
}
