// SPDX-License-Identifier: Apache-2.0
// Another module beside the one that is tested. Declares by itself what it needs of Redis' module interface, so that it
// is built without Redis' header.
//
//   FOREIGN.SET key value   changes a key, and tells nobody
//   FOREIGN.EXPIRE key ms   the same of its deadline, ms from now
//   FOREIGN.THREAD key value   a thread of its own calls SET
//   loadmodule foreign.so rename FROM TO   a command filter: who sends FROM has TO executed

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleKey RedisModuleKey;
typedef struct RedisModuleCommandFilter RedisModuleCommandFilter;
typedef struct RedisModuleCommandFilterCtx RedisModuleCommandFilterCtx;
typedef int (*Command)(RedisModuleCtx *, RedisModuleString **, int);
typedef void (*Filter)(RedisModuleCommandFilterCtx *);

enum { API_VERSION = 1, READ_AND_WRITE = 3, NAME_MAX_LEN = 64 };

static int (*SetModuleAttribs)(RedisModuleCtx *, const char *, int, int);
static int (*CreateCommand)(RedisModuleCtx *, const char *, Command, const char *, int, int, int);
static int (*ReplyWithSimpleString)(RedisModuleCtx *, const char *);
static int (*WrongArity)(RedisModuleCtx *);
static RedisModuleKey *(*OpenKey)(RedisModuleCtx *, RedisModuleString *, int);
static void (*CloseKey)(RedisModuleKey *);
static int (*SetExpire)(RedisModuleKey *, long long);
static int (*StringToLongLong)(const RedisModuleString *, long long *);
static int (*StringSet)(RedisModuleKey *, RedisModuleString *);
static const char *(*StringPtrLen)(const RedisModuleString *, size_t *);
static RedisModuleString *(*CreateString)(RedisModuleCtx *, const char *, size_t);
static void *(*Call)(RedisModuleCtx *, const char *, const char *, ...);
static RedisModuleCtx *(*GetThreadSafeContext)(void *);
static void (*ThreadSafeContextLock)(RedisModuleCtx *);
static void (*ThreadSafeContextUnlock)(RedisModuleCtx *);
static RedisModuleCommandFilter *(*RegisterCommandFilter)(RedisModuleCtx *, Filter, int);
static const RedisModuleString *(*CommandFilterArgGet)(RedisModuleCommandFilterCtx *, int);
static int (*CommandFilterArgReplace)(RedisModuleCommandFilterCtx *, int, RedisModuleString *);

static char from[NAME_MAX_LEN], to[NAME_MAX_LEN];

static void copy(char *place, RedisModuleString *string) {
    size_t len;
    const char *text = StringPtrLen(string, &len);
    len = len < NAME_MAX_LEN ? len : NAME_MAX_LEN - 1;
    memcpy(place, text, len);
    place[len] = 0;
}

static int foreign_set(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 3)
        return WrongArity(ctx);
    RedisModuleKey *key = OpenKey(ctx, argv[1], READ_AND_WRITE);
    StringSet(key, argv[2]);
    CloseKey(key);
    return ReplyWithSimpleString(ctx, "OK");
}

static char thread_key[NAME_MAX_LEN], thread_value[NAME_MAX_LEN];

static void *call_set(void *unused) {
    (void)unused;
    RedisModuleCtx *ctx = GetThreadSafeContext(NULL);
    ThreadSafeContextLock(ctx);
    Call(ctx, "SET", "cc", thread_key, thread_value);
    ThreadSafeContextUnlock(ctx);
    return NULL;
}

static int foreign_thread(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 3)
        return WrongArity(ctx);
    copy(thread_key, argv[1]);
    copy(thread_value, argv[2]);
    pthread_t thread;
    if (pthread_create(&thread, NULL, call_set, NULL) == 0)
        pthread_detach(thread);
    return ReplyWithSimpleString(ctx, "OK");
}

static int foreign_expire(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long ms;
    if (argc != 3 || StringToLongLong(argv[2], &ms) != 0)
        return WrongArity(ctx);
    RedisModuleKey *key = OpenKey(ctx, argv[1], READ_AND_WRITE);
    SetExpire(key, ms);
    CloseKey(key);
    return ReplyWithSimpleString(ctx, "OK");
}

static void rename_command(RedisModuleCommandFilterCtx *command) {
    size_t len;
    const char *name = StringPtrLen(CommandFilterArgGet(command, 0), &len);
    if (len == strlen(from) && strncasecmp(name, from, len) == 0)
        CommandFilterArgReplace(command, 0, CreateString(NULL, to, strlen(to)));
}

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    // The first word of the context is the function that returns all others.
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    int missing = 0;
#define GET(name) missing |= get("RedisModule_" #name, &name)
    GET(SetModuleAttribs);
    GET(CreateCommand);
    GET(ReplyWithSimpleString);
    GET(WrongArity);
    GET(OpenKey);
    GET(CloseKey);
    GET(SetExpire);
    GET(StringToLongLong);
    GET(StringSet);
    GET(StringPtrLen);
    GET(CreateString);
    GET(Call);
    GET(GetThreadSafeContext);
    GET(ThreadSafeContextLock);
    GET(ThreadSafeContextUnlock);
    GET(RegisterCommandFilter);
    GET(CommandFilterArgGet);
    GET(CommandFilterArgReplace);
    if (missing)
        return 1;
    SetModuleAttribs(ctx, "foreign", 1, API_VERSION);
    if (argc == 3) {
        copy(from, argv[1]);
        copy(to, argv[2]);
        RegisterCommandFilter(ctx, rename_command, 0);
    }
    // Without "write": Redis and the other module take it for a command that touches no data.
    return CreateCommand(ctx, "foreign.set", foreign_set, "", 0, 0, 0) ||
           CreateCommand(ctx, "foreign.thread", foreign_thread, "", 0, 0, 0) ||
           CreateCommand(ctx, "foreign.expire", foreign_expire, "", 0, 0, 0);
}
