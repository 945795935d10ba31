-- Removes relays whose life was over, or implausible, before an instant: the instant, now, how long ago that is, how many.
delete from outbox_relay where expires_at < ? or expires_at > ? + 2 * lasts + ? limit ?
