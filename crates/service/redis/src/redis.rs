// SPDX-License-Identifier: Apache-2.0
//! Redis' module interface, as far as this module uses it, with its pointers kept inside.
//!
//! Everything here runs on Redis' main thread, which holds its lock: the interface is not thread-safe, and no
//! type here is `Send`.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    os::fd::RawFd,
    ptr,
};

use redis_module::raw;

use crate::{resp::Value, suspended};

/// Calls a function of the interface. Redis fills all of them in before it calls this module.
macro_rules! api {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the table of functions is filled by `Export_RedisModule_Init`, before anything else of this
        // module runs, and never changes after that. The arguments are what the function asks for, see the
        // caller.
        let function = unsafe { raw::$name }.expect(concat!("Redis has ", stringify!($name)));
        // SAFETY: as above.
        unsafe { function($($arg),*) }
    }};
}
pub(crate) use api;

/// The wall clock as Redis has looked at it last, in milliseconds.
pub(crate) fn cached_now_ms() -> i64 {
    api!(RedisModule_CachedMicroseconds()) / 1000
}

/// Major and minor version of the server.
pub(crate) fn server_version() -> (u8, u8) {
    let [_, major, minor, _] = api!(RedisModule_GetServerVersion()).to_be_bytes();
    (major, minor)
}

/// A string of Redis that outlives the call it came with. Counted, so that it costs no copy.
#[derive(Debug)]
pub(crate) struct Text(*mut raw::RedisModuleString);

impl Text {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(api!(RedisModule_CreateString(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len())))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        bytes_of(self.0)
    }

    /// Another reference to a string that Redis lends.
    fn retained(string: *mut raw::RedisModuleString) -> Self {
        api!(RedisModule_RetainString(ptr::null_mut(), string));
        Self(string)
    }

    /// A reference that Redis takes over.
    pub(crate) fn into_raw(self) -> *mut raw::RedisModuleString {
        let string = self.0;
        std::mem::forget(self);
        string
    }
}

impl Clone for Text {
    fn clone(&self) -> Self {
        Self::retained(self.0)
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        api!(RedisModule_FreeString(ptr::null_mut(), self.0));
    }
}

fn bytes_of<'a>(string: *const raw::RedisModuleString) -> &'a [u8] {
    let mut len = 0;
    let at = api!(RedisModule_StringPtrLen(string, &raw mut len));
    // SAFETY: Redis returns the string's place and its length, and keeps both while it holds the string: for a
    // command's arguments until the command returns. The callers bind the lifetime to those.
    unsafe { std::slice::from_raw_parts(at.cast(), len) }
}

/// A command's arguments, as Redis hands them over.
pub(crate) type Argv = *mut *mut raw::RedisModuleString;

/// The arguments of a command, its name first. Lent by Redis for the time of the command.
#[derive(Clone, Copy)]
pub(crate) struct Args<'a>(&'a [*mut raw::RedisModuleString]);

impl<'a> Args<'a> {
    /// # Safety
    /// `argv` is null, or has `argc` strings, which live as long as `'a`.
    pub(crate) unsafe fn new(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Self {
        // Redis hands over none for a module without arguments.
        if argv.is_null() {
            return Self(&[]);
        }
        // SAFETY: as the caller promises.
        Self(unsafe { std::slice::from_raw_parts(argv, usize::try_from(argc).unwrap_or(0)) })
    }

    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(self, at: usize) -> Option<&'a [u8]> {
        self.0.get(at).map(|string| bytes_of(*string))
    }

    /// Without the first one.
    pub(crate) fn rest(self) -> Self {
        Self(self.0.get(1..).unwrap_or_default())
    }

    pub(crate) fn to_bytes(self) -> Vec<&'a [u8]> {
        self.0.iter().map(|string| bytes_of(*string)).collect()
    }

    /// To be kept after the command.
    pub(crate) fn retain(self) -> Vec<Text> {
        self.0.iter().map(|string| Text::retained(*string)).collect()
    }
}

/// A reply of [`Ctx::call`].
pub(crate) struct Reply(*mut raw::RedisModuleCallReply);

impl Reply {
    /// In Redis' protocol.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.is_null() {
            return b"-ERR the command was not executed\r\n";
        }
        let mut len = 0;
        let at = api!(RedisModule_CallReplyProto(self.0, &raw mut len));
        if at.is_null() {
            return b"-ERR the command was not executed\r\n";
        }
        // SAFETY: the reply owns these bytes, and lives as long as the returned borrow.
        unsafe { std::slice::from_raw_parts(at.cast(), len) }
    }

    pub(crate) fn value(&self) -> Value {
        match Value::read(self.bytes()) {
            Ok(Some((value, _))) => value,
            _ => Value::Error(b"ERR Redis' reply cannot be read".to_vec()),
        }
    }

    pub(crate) fn is_error(&self) -> bool {
        self.bytes().first().is_none_or(|kind| *kind == b'-' || *kind == b'!')
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.0.is_null() {
            api!(RedisModule_FreeCallReply(self.0));
        }
    }
}

/// A context: who calls, and where replies go.
#[derive(Clone, Copy)]
pub(crate) struct Ctx(pub(crate) *mut raw::RedisModuleCtx);

impl Ctx {
    /// Calls a command. `flags`: those of `RedisModule_Call`, for example `E` for errors as replies.
    pub(crate) fn call_args(self, flags: &CStr, args: Args<'_>) -> Reply {
        let Some((name, rest)) = args.0.split_first() else { return Reply(ptr::null_mut()) };
        let Ok(name) = CString::new(bytes_of(*name)) else { return Reply(ptr::null_mut()) };
        let mut format = flags.to_bytes().to_vec();
        format.push(b'v');
        let format = CString::new(format).expect("flags are letters");
        Reply(api!(RedisModule_Call(self.0, name.as_ptr(), format.as_ptr(), rest.as_ptr().cast_mut(), rest.len())))
    }

    /// As [`Ctx::call_args`], with a copy of the argument at `place`: Redis stores a number as a number only where
    /// nobody else holds its text.
    pub(crate) fn call_with_copy(self, flags: &CStr, args: Args<'_>, place: usize) -> Reply {
        let Some((name, rest)) = args.0.split_first() else { return Reply(ptr::null_mut()) };
        let Ok(name) = CString::new(bytes_of(*name)) else { return Reply(ptr::null_mut()) };
        let Some((before, [value, after @ ..])) = place.checked_sub(1).and_then(|place| rest.split_at_checked(place))
        else {
            return self.call_args(flags, args);
        };
        let value = bytes_of(*value);
        let format = CString::new([flags.to_bytes(), b"vbv"].concat()).expect("flags are letters");
        Reply(api!(RedisModule_Call(
            self.0,
            name.as_ptr(),
            format.as_ptr(),
            before.as_ptr().cast_mut(),
            before.len(),
            value.as_ptr(),
            value.len(),
            after.as_ptr().cast_mut(),
            after.len()
        )))
    }

    pub(crate) fn call_texts(self, flags: &CStr, args: &[Text]) -> Reply {
        let strings: Vec<_> = args.iter().map(|text| text.0).collect();
        self.call_args(flags, Args(&strings))
    }

    /// As [`Ctx::call_args`], with arguments of this module's own.
    pub(crate) fn call(self, flags: &CStr, args: &[&[u8]]) -> Reply {
        let texts: Vec<Text> = args.iter().map(|arg| Text::new(arg)).collect();
        self.call_texts(flags, &texts)
    }

    pub(crate) fn reply(self, reply: &Reply) -> c_int {
        if reply.0.is_null() {
            return self.error("ERR the command was not executed");
        }
        api!(RedisModule_ReplyWithCallReply(self.0, reply.0))
    }

    /// `message` begins with a code.
    pub(crate) fn error(self, message: &str) -> c_int {
        let message = CString::new(message.replace(['\0', '\r', '\n'], " ")).expect("no zero in it");
        api!(RedisModule_ReplyWithError(self.0, message.as_ptr()))
    }

    pub(crate) fn ok(self) -> c_int {
        api!(RedisModule_ReplyWithSimpleString(self.0, c"OK".as_ptr()))
    }

    pub(crate) fn status(self, text: &str) -> c_int {
        let text = CString::new(text.replace('\0', " ")).expect("no zero in it");
        api!(RedisModule_ReplyWithSimpleString(self.0, text.as_ptr()))
    }

    pub(crate) fn null(self) -> c_int {
        api!(RedisModule_ReplyWithNull(self.0))
    }

    pub(crate) fn null_array(self) -> c_int {
        api!(RedisModule_ReplyWithNullArray(self.0))
    }

    /// So many values follow.
    pub(crate) fn array(self, len: usize) -> c_int {
        api!(RedisModule_ReplyWithArray(self.0, len.try_into().unwrap_or(0)))
    }

    /// The head of a map, whose names and values follow in turn; in RESP2 it is an array of both.
    pub(crate) fn map(self, len: usize) -> c_int {
        api!(RedisModule_ReplyWithMap(self.0, len.try_into().unwrap_or(0)))
    }

    pub(crate) fn integer(self, number: i64) -> c_int {
        api!(RedisModule_ReplyWithLongLong(self.0, number))
    }

    pub(crate) fn string(self, bytes: &[u8]) -> c_int {
        api!(RedisModule_ReplyWithStringBuffer(self.0, bytes.as_ptr().cast(), bytes.len()))
    }

    /// Replies with a tree as Redis would, but for the kinds of numbers.
    pub(crate) fn value(self, value: &Value) -> c_int {
        match value {
            Value::Null => self.null(),
            Value::Error(text) => self.error(&String::from_utf8_lossy(text)),
            Value::Leaf(bytes) => self.string(bytes),
            Value::List(values) => {
                self.array(values.len());
                values.iter().for_each(|value| {
                    self.value(value);
                });
                0
            }
        }
    }

    pub(crate) fn flags(self) -> u32 {
        api!(RedisModule_GetContextFlags(self.0)).cast_unsigned()
    }

    /// Inside of a transaction or a script: nothing may wait here.
    pub(crate) fn is_nested(self) -> bool {
        let nested = raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        self.flags() & nested != 0
    }

    /// Redis executes a script or a transaction at this moment, whoever's.
    pub(crate) fn is_within_other() -> bool {
        let within = raw::REDISMODULE_CTX_FLAGS_MULTI | raw::REDISMODULE_CTX_FLAGS_LUA;
        Ctx(ptr::null_mut()).flags() & within != 0
    }

    /// Inside of a transaction.
    pub(crate) fn is_in_transaction(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_MULTI != 0
    }

    /// Inside of a script.
    pub(crate) fn is_in_script(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_LUA != 0
    }

    /// The client speaks RESP3.
    pub(crate) fn is_resp3(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_RESP3 != 0
    }

    /// The command comes from the replication link.
    pub(crate) fn is_replicated(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_REPLICATED != 0
    }

    /// The id of the client whose command this is.
    pub(crate) fn client(self) -> u64 {
        api!(RedisModule_GetClientId(self.0))
    }

    pub(crate) fn db(self) -> u32 {
        u32::try_from(api!(RedisModule_GetSelectedDb(self.0))).unwrap_or(0)
    }

    pub(crate) fn replicate_verbatim(self) {
        api!(RedisModule_ReplicateVerbatim(self.0));
    }

    /// A command to servers that replicate from this one.
    pub(crate) fn replicate(self, args: &[&[u8]]) {
        let Some((name, rest)) = args.split_first() else { return };
        let Ok(name) = CString::new(*name) else { return };
        let texts: Vec<Text> = rest.iter().map(|arg| Text::new(arg)).collect();
        let strings: Vec<_> = texts.iter().map(|text| text.0).collect();
        api!(RedisModule_Replicate(self.0, name.as_ptr(), c"v".as_ptr(), strings.as_ptr().cast_mut(), strings.len()));
    }

    /// To the subscribers of this server.
    pub(crate) fn publish(self, channel: &str, message: &str) {
        let (channel, message) = (Text::new(channel.as_bytes()), Text::new(message.as_bytes()));
        api!(RedisModule_PublishMessage(self.0, channel.0, message.0));
    }

    pub(crate) fn log(self, level: &CStr, message: &str) {
        let message = CString::new(message.replace('\0', " ")).expect("no zero in it");
        api!(RedisModule_Log(self.0, level.as_ptr(), c"%s".as_ptr(), message.as_ptr()));
    }

    /// # Errors
    /// Redis has a command of that name already.
    pub(crate) fn command(self, name: &CStr, function: CommandFn, flags: &CStr) -> Result<(), String> {
        let result = api!(RedisModule_CreateCommand(self.0, name.as_ptr(), Some(function), flags.as_ptr(), 0, 0, 0));
        if result == 0 { Ok(()) } else { Err(format!("Redis refuses the command {}", name.to_string_lossy())) }
    }

    pub(crate) fn subscribe(self, id: u64, function: EventFn) {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        api!(RedisModule_SubscribeToServerEvent(self.0, event, Some(function)));
    }

    pub(crate) fn filter(self, function: FilterFn) {
        api!(RedisModule_RegisterCommandFilter(self.0, Some(function), 0));
    }

    pub(crate) fn notify(self, kinds: c_int, function: NotifyFn) {
        api!(RedisModule_SubscribeToKeyspaceEvents(self.0, kinds, Some(function)));
    }

    pub(crate) fn timer(self, ms: i64, function: TimerFn) {
        api!(RedisModule_CreateTimer(self.0, ms, Some(function), ptr::null_mut()));
    }

    /// Suspends the client of this command until [`Blocked::end`].
    pub(crate) fn block(self) -> Blocked {
        suspended::note_suspended();
        Blocked(api!(RedisModule_BlockClient(self.0, None, None, None, 0)))
    }

    /// Suspends the client until one of these keys has data, or the time is over (0: never). `data` is what
    /// [`Ctx::private`] returns in the callbacks.
    pub(crate) fn block_on_keys<T>(
        self,
        keys: &mut [Text],
        timeout_ms: i64,
        ready: CommandFn,
        late: CommandFn,
        data: Box<T>,
    ) -> WaitingClient {
        unsafe extern "C" fn free<T>(_: *mut raw::RedisModuleCtx, data: *mut c_void) {
            // SAFETY: it is the box of `block_on_keys`, which Redis returns once.
            drop(unsafe { Box::from_raw(data.cast::<T>()) });
        }
        let mut strings: Vec<_> = keys.iter().map(|key| key.0).collect();
        WaitingClient(api!(RedisModule_BlockClientOnKeys(
            self.0,
            Some(ready),
            Some(late),
            Some(free::<T>),
            timeout_ms,
            strings.as_mut_ptr(),
            c_int::try_from(strings.len()).unwrap_or(0),
            Box::into_raw(data).cast()
        )))
    }

    /// The key that has data, in a callback of a client that [`Ctx::block_on_keys`] suspended.
    pub(crate) fn ready_key(self) -> Option<Text> {
        let key = api!(RedisModule_GetBlockedClientReadyKey(self.0));
        (!key.is_null()).then(|| Text::retained(key))
    }

    /// # Safety
    /// This is a callback of a client that [`Ctx::block_on_keys`] suspended, with data of this type.
    pub(crate) unsafe fn private<'a, T>(self) -> &'a T {
        let data = api!(RedisModule_GetBlockedClientPrivateData(self.0));
        // SAFETY: as the caller promises; Redis frees it after the callback.
        unsafe { &*data.cast::<T>() }
    }

    /// A context of its own, for calls outside of commands. Never freed: there is one.
    pub(crate) fn detached(self) -> Ctx {
        Ctx(api!(RedisModule_GetDetachedThreadSafeContext(self.0)))
    }
}

pub(crate) type CommandFn =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;
pub(crate) type EventFn = unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);
pub(crate) type FilterFn = unsafe extern "C" fn(*mut raw::RedisModuleCommandFilterCtx);
pub(crate) type NotifyFn = unsafe extern "C" fn(
    *mut raw::RedisModuleCtx,
    c_int,
    *const std::ffi::c_char,
    *mut raw::RedisModuleString,
) -> c_int;
pub(crate) type TimerFn = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut c_void);
pub(crate) type LoopFn = unsafe extern "C" fn(c_int, *mut c_void, c_int);

/// The bytes of a key that Redis names in a notification.
pub(crate) fn key_bytes<'a>(key: *mut raw::RedisModuleString) -> &'a [u8] {
    bytes_of(key)
}

/// A client that waits.
pub(crate) struct Blocked(*mut raw::RedisModuleBlockedClient);

impl Blocked {
    /// Has a reply written, and the client go on.
    pub(crate) fn end(self, write: impl FnOnce(Ctx)) {
        let ctx = api!(RedisModule_GetThreadSafeContext(self.0));
        write(Ctx(ctx));
        api!(RedisModule_FreeThreadSafeContext(ctx));
        api!(RedisModule_UnblockClient(self.0, ptr::null_mut()));
        suspended::note_answered();
    }
}

/// A client that waits for keys; to be used no longer than its data lives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingClient(*mut raw::RedisModuleBlockedClient);

impl WaitingClient {
    /// Ends its wait as if the time were over.
    pub(crate) fn end(self) {
        api!(RedisModule_UnblockClient(self.0, ptr::null_mut()));
    }
}

/// A command before Redis looks it up.
pub(crate) struct Filtered(pub(crate) *mut raw::RedisModuleCommandFilterCtx);

impl Filtered {
    pub(crate) fn len(&self) -> usize {
        usize::try_from(api!(RedisModule_CommandFilterArgsCount(self.0))).unwrap_or(0)
    }

    pub(crate) fn get(&self, at: usize) -> Option<&[u8]> {
        let string = api!(RedisModule_CommandFilterArgGet(self.0, c_int::try_from(at).ok()?));
        (!string.is_null()).then(|| bytes_of(string))
    }

    /// Adds a word at the end.
    pub(crate) fn append(&self, word: &Text) {
        let end = c_int::try_from(self.len()).unwrap_or(0);
        api!(RedisModule_CommandFilterArgInsert(self.0, end, word.clone().into_raw()));
    }

    /// Puts a word in front: the command becomes its argument.
    pub(crate) fn prepend(&self, word: &Text) {
        api!(RedisModule_CommandFilterArgInsert(self.0, 0, word.clone().into_raw()));
    }
}

/// Has `function` called when a descriptor is readable or writable.
pub(crate) fn watch(fd: RawFd, mask: u32, function: LoopFn) -> bool {
    api!(RedisModule_EventLoopAdd(fd, mask.cast_signed(), Some(function), ptr::null_mut())) == 0
}

pub(crate) fn unwatch(fd: RawFd, mask: u32) {
    api!(RedisModule_EventLoopDel(fd, mask.cast_signed()));
}

pub(crate) fn now_ms() -> i64 {
    api!(RedisModule_Milliseconds())
}

/// Where the other end of a client's connection is, as Redis writes addresses; none: there is no such client.
pub(crate) fn peer_of(client: u64) -> Option<String> {
    let mut info = raw::RedisModuleClientInfo { version: 1, flags: 0, id: 0, addr: [0; 46], port: 0, db: 0 };
    if api!(RedisModule_GetClientInfoById((&raw mut info).cast(), client)) != 0 {
        return None;
    }
    let address = info.addr.map(c_char::cast_unsigned);
    let address = CStr::from_bytes_until_nul(&address).ok()?.to_str().ok()?;
    Some(format!("{address}:{}", info.port))
}

/// Lends strings of this module's own as arguments.
pub(crate) fn with_args<T>(texts: &[Text], work: impl FnOnce(Args<'_>) -> T) -> T {
    let strings: Vec<_> = texts.iter().map(|text| text.0).collect();
    work(Args(&strings))
}

/// Whether the client of this context may execute a command with these keys.
pub(crate) fn is_allowed(ctx: Ctx, args: Args<'_>) -> bool {
    user_of(ctx).and_then(|name| User::named(&name)).is_some_and(|user| user.may(args))
}

/// The name of the user of this context's client.
pub(crate) fn user_of(ctx: Ctx) -> Option<Vec<u8>> {
    let name = api!(RedisModule_GetCurrentUserName(ctx.0));
    if name.is_null() {
        return None;
    }
    let bytes = bytes_of(name).to_vec();
    api!(RedisModule_FreeString(ctx.0, name));
    Some(bytes)
}

/// A user of this server.
pub(crate) struct User(*mut raw::RedisModuleUser);

impl User {
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        let user = api!(RedisModule_GetModuleUserFromUserName(Text::new(name).0));
        (!user.is_null()).then(|| Self(user))
    }

    /// Whether this user may execute a command with these keys.
    pub(crate) fn may(&self, args: Args<'_>) -> bool {
        let argc = c_int::try_from(args.0.len()).unwrap_or(0);
        api!(RedisModule_ACLCheckCommandPermissions(self.0, args.0.as_ptr().cast_mut(), argc)) == 0
    }

    /// Commands that are called with the flag `C` have this user's rights meanwhile. In the context of a client that
    /// waits, only what this user [may](User::may): Redis 7.0 crashes when it logs there what a user may not.
    pub(crate) fn lend<T>(&self, ctx: Ctx, work: impl FnOnce() -> T) -> T {
        api!(RedisModule_SetContextUser(ctx.0, self.0));
        let result = work();
        api!(RedisModule_SetContextUser(ctx.0, ptr::null()));
        result
    }
}

impl Drop for User {
    fn drop(&mut self) {
        api!(RedisModule_FreeModuleUser(self.0));
    }
}

/// The first key of a command, as the server finds it.
pub(crate) fn first_key<'a>(ctx: Ctx, args: Args<'a>) -> Option<&'a [u8]> {
    let (argc, mut count) = (c_int::try_from(args.0.len()).ok()?, 0);
    let places = api!(RedisModule_GetCommandKeys(ctx.0, args.0.as_ptr().cast_mut(), argc, &raw mut count));
    if places.is_null() {
        return None;
    }
    // SAFETY: Redis returns `count` places, which are this module's until it frees them.
    let all = unsafe { std::slice::from_raw_parts(places, usize::try_from(count).unwrap_or(0)) };
    // Redis has the key that is stored behind those that are read.
    let first = all.iter().min().copied();
    api!(RedisModule_Free(places.cast()));
    args.get(usize::try_from(first?).ok()?)
}
