//! Remote increment (section 6.2): a message of four bytes is added to a counter, whose value is the reply.

#![no_std]

use ash_guest::{Message, Verdict, handler};

handler!(increment, [u8; 4] = [0; 4]);

fn increment<'m>(counter: &'m mut [u8; 4], message: &Message<'m>) -> Verdict {
    let Ok(by) = message.bytes().try_into() else { return Verdict::Pass };
    *counter = u32::from_be_bytes(*counter).wrapping_add(u32::from_be_bytes(by)).to_be_bytes();
    match message.send(counter) {
        Ok(()) => Verdict::Handled,
        Err(_) => Verdict::Abort,
    }
}
