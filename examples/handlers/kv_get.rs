//! Answers `get KEY` of memcached's protocol from the table that `examples/kv` shares (ASH, section 5.4.1). What is not
//! there, and every other command, reaches the application.
//!
//! The application describes the table in `examples/kv/src/mirror.rs`.

#![no_std]

use ash_guest::{CallError, Message, Table, Verdict, handler};

handler!(get, [u8; 512] = [0; 512]);

fn get<'m>(item: &'m mut [u8; 512], message: &Message<'m>) -> Verdict {
    match find(item, message.bytes()) {
        Ok(Some(reply)) if message.send(reply).is_ok() => Verdict::Handled,
        Ok(_) => Verdict::Pass,
        // The application writes the item: a handler must not wait.
        Err(_) => Verdict::Abort,
    }
}

fn find<'m>(item: &'m mut [u8; 512], message: &[u8]) -> Result<Option<&'m [u8]>, CallError> {
    let key = message.strip_prefix(b"get ").and_then(|key| key.strip_suffix(b"\r\n"));
    // Several keys and several commands are left to the application.
    let Some(key) = key.filter(|key| key.iter().all(|byte| *byte > b' ')) else { return Ok(None) };
    let Some(table) = Table::shared() else { return Ok(None) };
    let hash = key
        .iter()
        .fold(0x811c_9dc5u32, |hash, byte| (hash ^ *byte as u32).wrapping_mul(0x0100_0193));
    let bucket = u64::from(hash) & table.word(0)?.wrapping_sub(1);
    table.copy_versioned(1024 + bucket as usize * 512, item)?;
    let [_, generation, deadline, len] = core::array::from_fn(|n| {
        item.as_chunks().0.get(n).map_or(0, |word| u64::from_le_bytes(*word))
    });
    // The clocks of handlers began at different times of the server.
    let now = table.word(64 + ash_guest::tenant() as usize % 64 * 8)? + ash_guest::clock();
    let reply = item.get(32..32 + len as usize).unwrap_or_default();
    let rest = reply.strip_prefix(b"VALUE ").and_then(|rest| rest.strip_prefix(key));
    let is_valid = generation == table.word(8)?
        && now < deadline
        && rest.is_some_and(|rest| rest.starts_with(b" "));
    Ok(is_valid.then_some(reply))
}
