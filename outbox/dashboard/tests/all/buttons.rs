//! Every button, and its effect in the store.

use outbox::admin::{Filter, View};
use outbox::{Admin, Route, Topic};

use crate::world::World;

#[tokio::test]
async fn one_dead_letter_is_requeued_from_its_page() {
    let world = World::full().await;
    let id = world.view(View::DeadLetters).await[0].stored.message.id;
    world.browser().press(&format!("/message?id={id}"), "Requeue").await.says("Requeued 1 dead letter.");
    assert_eq!(world.number(View::DeadLetters).await, 0);
    assert!(world.view(View::Waiting).await.iter().any(|listed| listed.stored.message.id == id));
}

#[tokio::test]
async fn dead_letters_of_a_filter_are_requeued_and_no_others() {
    let world = World::new();
    for key in ["a", "b", "a", "c"] {
        let id = world.order(key).await;
        world.bury(id, "no").await;
    }
    world.browser().press("/dead?key=a", "Requeue all").await.says("Requeued 2 dead letters.");
    let left = world.view(View::DeadLetters).await;
    assert_eq!(left.len(), 2);
    world.browser().press("/dead", "Requeue all").await.says("Requeued 2 dead letters.");
    assert_eq!((world.number(View::DeadLetters).await, world.number(View::Waiting).await), (0, 4));
}

#[tokio::test]
async fn dead_letters_of_a_cause_are_requeued_and_purged() {
    let world = World::new();
    for number in 0..9 {
        let id = world.order(&format!("k{number}")).await;
        world
            .bury(id, &if number < 5 { format!("row {number} is gone") } else { "no access".to_owned() })
            .await;
    }
    let browser = world.browser();
    browser.press("/causes?text=gone", "Requeue").await.says("Requeued 5 dead letters.");
    assert_eq!((world.number(View::DeadLetters).await, world.number(View::Waiting).await), (4, 5));
    browser.press("/causes", "Purge").await.says("Purged 4 dead letters.");
    assert_eq!((world.number(View::DeadLetters).await, world.number(View::Waiting).await), (0, 5));
}

#[tokio::test]
async fn chosen_dead_letters_are_purged() {
    let world = World::new();
    let mut ids = Vec::new();
    for key in ["a", "b", "c"] {
        let id = world.order(key).await;
        world.bury(id, "no").await;
        ids.push(id);
    }
    let browser = world.browser();
    let asks =
        browser.get(&format!("/confirm?op=purge&id={}&id={}&back=/dead", ids[0], ids[2])).await.is(200);
    let asks = asks.says("Purge 2 dead letters?").says("They can't be restored.").says("2 chosen");
    browser.send(&asks.form_of_confirmation()).await.is(303);
    let left = world.view(View::DeadLetters).await;
    assert_eq!(left.iter().map(|listed| listed.stored.message.id).collect::<Vec<_>>(), [ids[1]]);
}

#[tokio::test]
async fn a_button_for_chosen_messages_takes_none_that_was_not_chosen() {
    let world = World::full().await;
    let browser = world.browser();
    for (path, operation) in [
        ("/dead", "requeue"),
        ("/dead", "purge"),
        ("/scheduled", "cancel"),
        ("/messages?view=history", "replay"),
    ] {
        // As a browser sends the form of the list, with nothing chosen.
        let page = browser.get(path).await.is(200);
        let form = page.body.split("class=\"choose\"").nth(1).unwrap().split("</form>").next().unwrap();
        assert!(form.contains(&format!("name=\"op\" value=\"{operation}\"")), "{form}");
        assert!(form.contains("name=\"chosen\" value=\"1\""), "{form}");
        let asked = format!("/confirm?chosen=1&route=default&op={operation}");
        browser.get(&asked).await.is(400).says("no message is selected");
    }
}

/// A filter that is shown has to be applied.
#[tokio::test]
async fn keys_are_not_selected_by_what_only_messages_have() {
    let world = World::full().await;
    let browser = world.browser();
    for by in ["type=order.placed", "cause=timeout", "text=timeout"] {
        let asked = format!("/confirm?op=discard&route=default&{by}");
        browser.get(&asked).await.is(400).says("keys are not selected by");
    }
}

#[tokio::test]
async fn a_removed_message_leads_back_to_its_list() {
    let world = World::full().await;
    let browser = world.browser();
    let id = world.view(View::DeadLetters).await[0].stored.message.id;
    browser
        .press(&format!("/message?id={id}"), "Purge")
        .await
        .says("Purged 1 dead letter.")
        .says("No dead letters.");
    let id = world.view(View::Scheduled).await[0].stored.message.id;
    let said = "Canceled 1 scheduled message.";
    browser.press(&format!("/message?id={id}"), "Cancel").await.says(said).says("No message is scheduled.");
}

#[tokio::test]
async fn what_comes_after_the_question_is_not_hit() {
    let world = World::full().await;
    let browser = world.browser();
    let asks = browser.get("/confirm?op=purge&route=default").await.is(200).says("Purge 1 dead letter?");
    let late = world.order("late").await;
    world.bury(late, "no").await;
    browser.send(&asks.form_of_confirmation()).await.is(303);
    let left = world.view(View::DeadLetters).await;
    assert_eq!(left.iter().map(|listed| listed.stored.message.id).collect::<Vec<_>>(), [late]);
}

#[tokio::test]
async fn a_message_that_is_gone_is_told() {
    let world = World::full().await;
    let browser = world.browser();
    let id = world.view(View::DeadLetters).await[0].stored.message.id;
    let asks = browser.get(&format!("/confirm?op=requeue&id={id}")).await.is(200);
    world.store.purge(&Filter::all_routes()).await.unwrap();
    let sent = browser.send(&asks.form_of_confirmation()).await.is(303);
    browser.get(&sent.location()).await.says("Requeued 0 dead letters. 1 was no longer there");
    browser.get(&format!("/confirm?op=requeue&id={id}")).await.is(404).says("nothing is selected");
}

#[tokio::test]
async fn of_two_visitors_who_confirm_the_same_at_once_one_acts_and_the_other_is_told() {
    let world = World::full().await;
    let (first, second) = (world.browser(), world.browser());
    let id = world.view(View::DeadLetters).await[0].stored.message.id;
    let path = format!("/confirm?op=requeue&id={id}");
    let (asks, asks_too) = tokio::join!(first.get(&path), second.get(&path));
    let (form, form_too) = (asks.is(200).form_of_confirmation(), asks_too.is(200).form_of_confirmation());
    let (sent, sent_too) = tokio::join!(first.send(&form), second.send(&form_too));
    let told = [first.get(&sent.location()).await.body, second.get(&sent_too.location()).await.body];
    let number = |text: &str| told.iter().filter(|body| body.contains(text)).count();
    assert_eq!(number("Requeued 1 dead letter."), 1, "{told:?}");
    assert_eq!(number("Requeued 0 dead letters. 1 was no longer there"), 1, "{told:?}");
    assert_eq!(world.view(View::Waiting).await.iter().filter(|it| it.stored.message.id == id).count(), 1);
}

#[tokio::test]
async fn a_key_is_held_and_released() {
    let world = World::full().await;
    let browser = world.browser();
    browser.press("/key?topic=orders&key=waiting", "Hold").await.says("Held the key waiting of orders.");
    let held = |name: &'static str| {
        let store = world.store.clone();
        async move {
            let keys = store.failing_keys(&Filter::all_routes()).await.unwrap();
            keys.into_iter().find(|key| key.key.key == *name).map(|key| key.held)
        }
    };
    assert_eq!(held("waiting").await, Some(true));
    browser.press("/key?topic=orders&key=held", "Release: try again now").await.says("Released 1 key.");
    assert_eq!(held("held").await, Some(false));
    let form = browser
        .get("/keys")
        .await
        .form("Hold")
        .with("topic", "orders")
        .with("key", "new")
        .with("route", "default");
    browser.send(&form).await.is(303);
    assert_eq!(held("new").await, Some(true));
}

#[tokio::test]
async fn the_first_message_of_a_key_is_skipped_and_all_are_discarded() {
    let world = World::full().await;
    let browser = world.browser();
    browser
        .press("/key?topic=orders&key=failing", "Skip the first message")
        .await
        .says("Skipped the first message of 1 key.");
    let reasons = || async {
        let dead = world.view(View::DeadLetters).await;
        let mut reasons: Vec<String> = dead.into_iter().map(|listed| listed.death.unwrap().reason).collect();
        reasons.sort();
        reasons
    };
    assert_eq!(reasons().await, ["exhausted", "skipped"]);
    let asks = browser.get("/confirm?op=discard&topic=orders&key=held").await.is(200);
    let asks = asks.says("Discard 1 message of 1 key?");
    browser.send(&asks.form_of_confirmation()).await.is(303);
    assert_eq!(reasons().await, ["discarded", "exhausted", "skipped"]);
}

#[tokio::test]
async fn all_keys_of_a_filter_are_released() {
    let world = World::new();
    for key in ["a", "b", "c"] {
        let id = world.order(key).await;
        world.fail(id, "no", true).await;
    }
    world.browser().press("/keys", "Release all").await.says("Released 3 keys.");
    let keys = world.store.failing_keys(&Filter::all_routes()).await.unwrap();
    assert!(keys.iter().all(|key| !key.held), "{keys:?}");
}

#[tokio::test]
async fn scheduled_messages_are_canceled_and_delivered_ones_replayed() {
    let world = World::full().await;
    let browser = world.browser();
    browser.press("/scheduled", "Cancel all").await.says("Canceled 1 scheduled message.");
    assert_eq!(world.number(View::Scheduled).await, 0);
    browser.press("/messages?view=history", "Replay all").await.says("Replayed 1 delivered message.");
    assert_eq!((world.number(View::History).await, world.number(View::Waiting).await), (1, 2));
    let id = world.view(View::History).await[0].stored.message.id;
    browser
        .press(&format!("/message?view=history&id={id}"), "Replay")
        .await
        .says("Replayed 1 delivered message.");
    assert_eq!(world.number(View::Waiting).await, 3);
}

#[tokio::test]
async fn a_route_and_a_topic_are_paused_and_resumed() {
    let world = World::full().await;
    let browser = world.browser();
    let paused = || async {
        let routes = world.store.routes().await.unwrap();
        routes.into_iter().find(|status| status.route == Route::default()).unwrap().paused
    };
    browser.press("/topics", "Pause the route").await.says("Paused the route default. Relays follow");
    assert!(paused().await.route);
    browser.press("/topics", "Resume the route").await.says("Resumed the route default.");
    assert!(!paused().await.route);
    browser.press("/topics", "Pause").await.says("Paused the topic orders.");
    assert_eq!(paused().await.topics, [Topic::new("orders").unwrap()]);
    browser.press("/topics", "Resume").await.says("Resumed the topic orders.");
    assert!(paused().await.topics.is_empty());
}

#[tokio::test]
async fn the_audit_names_the_visitor_and_what_was_done() {
    let world = World::full().await;
    let browser = world.browser();
    let id = world.view(View::DeadLetters).await[0].stored.message.id;
    browser.press("/dead", "Requeue all").await;
    let entries = world.store.audit(&Filter::all_routes()).await.unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!((entries[0].actor.as_str(), entries[0].operation.as_str()), ("local (dashboard)", "requeue"));
    assert_eq!((entries[0].affected, entries[0].ids.as_slice()), (1, &[id][..]));
    browser.get("/audit").await.is(200).says("local (dashboard)").says("requeue").says(&id.to_string());
}

#[tokio::test]
async fn an_operation_that_is_none_is_refused() {
    let world = World::full().await;
    let browser = world.browser();
    browser.get("/confirm?op=drop-tables").await.is(400).says("is not an operation");
    browser.get("/confirm").await.is(400);
    browser.get("/confirm?op=pause").await.is(400).says("the route is missing");
    browser.get("/confirm?op=requeue&since=noon").await.is(400);
    browser.get("/confirm?op=release&topic=orders&key=none").await.is(404).says("nothing is selected");
}
