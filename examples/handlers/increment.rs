//! Remote increment (section 6.2): a message of four bytes is added to a counter, whose value is the reply. A sum that
//! is too large is left to the application.

#![no_std]

use ash_guest::{Message, Verdict, handler};

handler!(increment, [u8; 4] = [0; 4]);

fn increment<'m>(counter: &'m mut [u8; 4], message: &Message<'m>) -> Verdict {
    let Ok(by) = message.bytes().try_into() else { return Verdict::Pass };
    let sum = u32::from_be_bytes(*counter).checked_add(u32::from_be_bytes(by));
    *counter = sum.unwrap_or_else(|| ash_guest::abort()).to_be_bytes();
    match message.send(counter) {
        Ok(()) => Verdict::Handled,
        Err(_) => Verdict::Abort,
    }
}
