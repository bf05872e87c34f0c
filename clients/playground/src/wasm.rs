//! The functions that a page calls. Memory goes one way at a time: a page asks for room with
//! [`flashtile_alloc`], writes a request there and gives it to [`flashtile_call`], which takes it;
//! the answer is the page's until [`flashtile_free`].

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};

/// Bytes in front of an answer: its length, little-endian.
const HEAD: usize = 4;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), HEAD).expect("less than half of memory")
}

/// Room for a request of `bytes` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn flashtile_alloc(bytes: usize) -> *mut u8 {
    let layout = layout(bytes);
    // SAFETY: the layout has at least one byte.
    let room = unsafe { alloc(layout) };
    if room.is_null() { handle_alloc_error(layout) } else { room }
}

/// The answer to a request: its length in 4 bytes, then that many bytes of JSON.
///
/// # Safety
/// `request` is what [`flashtile_alloc`] gave for these many `bytes`, all of them are written, and
/// nobody uses it after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flashtile_call(request: *mut u8, bytes: usize) -> *mut u8 {
    // SAFETY: the caller wrote that many bytes there.
    let text = String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(request, bytes) }).into_owned();
    // SAFETY: the room is of that layout, and the caller gave it up.
    unsafe { dealloc(request, layout(bytes)) };
    let answer = crate::answer(&text);
    let length = u32::try_from(answer.len()).expect("less than memory holds").to_le_bytes();
    let room = flashtile_alloc(HEAD + answer.len());
    // SAFETY: the room has that many bytes, and nobody else knows it.
    let written = unsafe { std::slice::from_raw_parts_mut(room, HEAD + answer.len()) };
    written[..HEAD].copy_from_slice(&length);
    written[HEAD..].copy_from_slice(answer.as_bytes());
    room
}

/// Takes an answer back.
///
/// # Safety
/// `answer` is what [`flashtile_call`] gave, unchanged, and nobody uses it after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flashtile_free(answer: *mut u8) {
    // SAFETY: an answer begins with its length.
    let length = u32::from_le_bytes(unsafe { answer.cast::<[u8; HEAD]>().read() });
    // SAFETY: the room was made with this layout.
    unsafe { dealloc(answer, layout(HEAD + length as usize)) };
}
