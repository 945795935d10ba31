//! Size of reads.

use std::time::Duration;

use outbox_servers::{OrSkip as _, Proxy, Redis};

use crate::redis_only::support::{at, deliver, finish, stored, subscribe};

/// Over a link that is slow, a read of everything that may be asked for would never end in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_come_over_a_slow_link() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let (proxy, prefix) = (Proxy::to(&server.url()), server.fresh_prefix());
    let near = at(&server.url(), &prefix).units(1).build().unwrap();
    let far = at(&proxy.url(&server.url()), &prefix).units(1).request_timeout(Duration::from_secs(2));
    let reader = subscribe(&far.build().unwrap(), "reader").await;
    // Some 6 MB a second at most.
    proxy.delay(Duration::from_millis(10));
    let sent: Vec<_> = (0..300).map(|at| stored(["a", "b", "c"][at % 3], 100_000)).collect();
    deliver(&near, &sent).await;
    finish(&*reader, &sent).await;
}
