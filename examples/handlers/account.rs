//! Transfers between accounts that the application changes, too (ASH, section 5.4.1): a message has the numbers of two
//! accounts and an amount, four bytes each, big-endian. The reply is what the first account has left. Each account is a
//! section of the table, with a lock; a handler that does not get both locks aborts, and the application transfers.

#![no_std]

use ash_guest::{CallError, Message, Verdict, handler};

handler!(transfer, [[u8; 8]; 2] = [[0; 8]; 2]);

fn transfer<'m>(balances: &'m mut [[u8; 8]; 2], message: &Message<'m>) -> Verdict {
    let ([from, to, amount], []) = message.bytes().as_chunks() else { return Verdict::Pass };
    let accounts = [from, to].map(|number| u32::from_be_bytes(*number));
    match commit(balances, message, accounts, u32::from_be_bytes(*amount).into()) {
        Ok(()) => Verdict::Handled,
        Err(_) => Verdict::Abort,
    }
}

fn commit<'m>(
    balances: &'m mut [[u8; 8]; 2],
    message: &Message<'m>,
    [from, to]: [u32; 2],
    amount: u64,
) -> Result<(), CallError> {
    let sections = [message.lock(from)?, message.lock(to)?];
    let [first, second] = balances;
    sections[0].copy(0, first)?;
    sections[1].copy(0, second)?;
    let rest = u64::from_le_bytes(*first).checked_sub(amount).filter(|_| from != to);
    *first = rest.ok_or(CallError::Invalid)?.to_le_bytes();
    *second = (u64::from_le_bytes(*second) + amount).to_le_bytes();
    // Both are written after the handler has returned, or none.
    sections[0].store(0, first)?;
    sections[1].store(0, second)?;
    message.send(first)
}
