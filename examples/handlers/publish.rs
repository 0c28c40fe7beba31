//! Keeps the last message that begins with `=` where it has landed, and answers `?` with it: its Internet checksum in two
//! bytes, big-endian, then its bytes. The application gets an event with the checksum of each message that the handler
//! keeps, and all other messages. The host gives the handler a pipe list that reads for the checksum, with its register,
//! and lets it keep a message.

#![no_std]

use ash_guest::{CallError, Kept, Message, PipeList, Verdict, count, handler};

handler!(publish, Option<Page> = None);

/// A message that the handler keeps.
struct Page {
    message: Kept,
    checksum: [u8; 2],
}

/// The list and its register, by the numbers that the host has given them.
const CHECKSUM: PipeList = PipeList::new(0);
const SUM: u32 = 0;

/// The kind of the event.
const PUBLISHED: u64 = 1;

/// The counter of answers.
const ANSWERS: u32 = 0;

fn publish(page: &mut Option<Page>, message: &Message<'_>) -> Verdict {
    let result = match (message.bytes(), page.as_ref()) {
        ([b'=', ..], _) => keep(page, message),
        (b"?", Some(page)) => answer(page, message),
        _ => return Verdict::Pass,
    };
    match result {
        Ok(()) => Verdict::Handled,
        Err(_) => Verdict::Abort,
    }
}

fn keep(page: &mut Option<Page>, message: &Message<'_>) -> Result<(), CallError> {
    CHECKSUM.read(message.bytes())?;
    let checksum = checksum(CHECKSUM.register(SUM));
    message.post(PUBLISHED, checksum.into())?;
    if let Some(last) = page {
        // Its place is free for this message. If the host has taken it, there is nothing to give back.
        let _ = last.message.give_back();
    }
    *page = Some(Page { message: message.keep()?, checksum: checksum.to_be_bytes() });
    Ok(())
}

fn answer(page: &Page, message: &Message<'_>) -> Result<(), CallError> {
    message.reply(2, |to| to.copy_from_slice(&page.checksum))?;
    message.send_kept(&page.message)?;
    count(ANSWERS, 1)
}

/// Returns the checksum for a sum of words whose carries are to be added (RFC 1071).
fn checksum(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    !(sum as u16).swap_bytes()
}
