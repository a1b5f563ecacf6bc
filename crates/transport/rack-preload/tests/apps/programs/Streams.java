// SPDX-License-Identifier: Apache-2.0
import com.sun.net.httpserver.HttpServer;
import java.io.*;
import java.net.*;
import java.net.http.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;

/** Selectors, streams and HTTP of Java: `Streams server`, or `Streams client PORT PORT PORT`. Prints what it sees. */
public class Streams {
    static final int SIZE = 4 << 20;

    static byte[] data(int seed, int count) {
        byte[] all = new byte[count];
        new Random(seed).nextBytes(all);
        return all;
    }

    static String hash(byte[] bytes) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes)).substring(0, 16);
    }

    /** What a selector has read of a connection, and not yet written. */
    static class Kept {
        final ByteBuffer rest = ByteBuffer.allocateDirect(100_000);
        boolean isOver;
    }

    static void selects(Selector selector) throws IOException {
        while (selector.isOpen()) {
            selector.select();
            if (!selector.isOpen()) return;
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
                SelectionKey key = keys.next();
                keys.remove();
                if (!key.isValid()) continue;
                if (key.isAcceptable()) {
                    SocketChannel channel = ((ServerSocketChannel) key.channel()).accept();
                    channel.configureBlocking(false);
                    channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                    channel.register(selector, SelectionKey.OP_READ, new Kept());
                    continue;
                }
                Kept kept = (Kept) key.attachment();
                SocketChannel channel = (SocketChannel) key.channel();
                try {
                    if (key.isReadable() && channel.read(kept.rest) < 0) kept.isOver = true;
                    kept.rest.flip();
                    channel.write(kept.rest);
                    kept.rest.compact();
                    int wants = kept.rest.position() > 0 ? SelectionKey.OP_WRITE : 0;
                    if (!kept.isOver && kept.rest.hasRemaining()) wants |= SelectionKey.OP_READ;
                    if (wants == 0) channel.close();
                    else key.interestOps(wants);
                } catch (IOException why) {
                    channel.close();
                }
            }
        }
    }

    static void serves(Socket socket) {
        try (socket) {
            InputStream in = socket.getInputStream();
            OutputStream out = socket.getOutputStream();
            byte[] some = new byte[30_000];
            for (int got; (got = in.read(some)) > 0; ) out.write(some, 0, got);
            socket.shutdownOutput();
        } catch (IOException why) {
            System.out.println("server: " + why.getMessage());
        }
    }

    static void server() throws Exception {
        InetAddress here = InetAddress.getByName("127.0.0.1");
        Selector selector = Selector.open();
        ServerSocketChannel channel = ServerSocketChannel.open().bind(new InetSocketAddress(here, 0));
        channel.configureBlocking(false);
        channel.register(selector, SelectionKey.OP_ACCEPT);
        Thread selecting = new Thread(() -> {
            try {
                selects(selector);
            } catch (Exception why) {
                System.out.println("selecting: " + why);
            }
        });
        selecting.start();
        ServerSocket sockets = new ServerSocket(0, 50, here);
        ExecutorService threads = Executors.newCachedThreadPool();
        threads.submit(() -> {
            while (true) {
                Socket socket = sockets.accept();
                threads.submit(() -> serves(socket));
            }
        });
        CountDownLatch over = new CountDownLatch(1);
        HttpServer http = HttpServer.create(new InetSocketAddress(here, 0), 50);
        http.setExecutor(threads);
        http.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, body.length == 0 ? -1 : body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
            if (exchange.getRequestURI().getPath().equals("/over")) over.countDown();
        });
        http.start();
        System.out.println(channel.socket().getLocalPort() + " " + sockets.getLocalPort() + " " + http.getAddress().getPort());
        over.await();
        Thread.sleep(100);
        selector.close();
        selecting.join(10_000);
        http.stop(0);
        sockets.close();
        System.out.println("stops " + selecting.isAlive());
        System.exit(0);
    }

    static String echoes(int port, int seed) throws Exception {
        try (Socket socket = new Socket("127.0.0.1", port)) {
            byte[] sent = data(seed, SIZE);
            Thread writes = new Thread(() -> {
                try {
                    OutputStream out = socket.getOutputStream();
                    for (int at = 0; at < SIZE; at += 65536) out.write(sent, at, Math.min(65536, SIZE - at));
                    socket.shutdownOutput();
                } catch (IOException why) {
                    System.out.println("writes: " + why.getMessage());
                }
            });
            writes.start();
            byte[] got = socket.getInputStream().readAllBytes();
            writes.join();
            return got.length + " " + Arrays.equals(got, sent);
        }
    }

    static String selectsAsClient(int port) throws Exception {
        byte[] sent = data(77, SIZE);
        ByteBuffer out = ByteBuffer.wrap(sent);
        ByteArrayOutputStream got = new ByteArrayOutputStream();
        ByteBuffer in = ByteBuffer.allocate(40_000);
        try (Selector selector = Selector.open(); SocketChannel channel = SocketChannel.open()) {
            channel.configureBlocking(false);
            SelectionKey key = channel.register(selector, SelectionKey.OP_CONNECT);
            channel.connect(new InetSocketAddress("127.0.0.1", port));
            while (channel.isOpen()) {
                selector.select(5000);
                selector.selectedKeys().clear();
                if (channel.isConnectionPending()) {
                    if (channel.finishConnect()) key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    continue;
                }
                if (out.hasRemaining()) channel.write(out);
                if (!out.hasRemaining() && key.interestOps() != SelectionKey.OP_READ) {
                    channel.shutdownOutput();
                    key.interestOps(SelectionKey.OP_READ);
                }
                int count = channel.read(in);
                in.flip();
                got.write(in.array(), 0, in.limit());
                in.clear();
                if (count < 0) channel.close();
            }
        }
        return got.size() + " " + Arrays.equals(got.toByteArray(), sent);
    }

    /** A few bytes there and back, so that the connection has its memory. */
    static void warms(Socket socket) throws Exception {
        for (int turn = 0; turn < 100; turn++) {
            socket.getOutputStream().write(1);
            socket.getInputStream().read();
        }
    }

    static void edges(int port) throws Exception {
        try (Socket socket = new Socket("127.0.0.1", port)) {
            warms(socket);
            socket.setSoTimeout(50);
            try {
                socket.getInputStream().read();
            } catch (SocketTimeoutException why) {
                System.out.println("in time: " + why.getMessage());
            }
            socket.setSoTimeout(0);
            Thread closes = new Thread(() -> {
                try {
                    Thread.sleep(50);
                    socket.close();
                } catch (Exception why) {
                    System.out.println("closes: " + why);
                }
            });
            closes.start();
            try {
                socket.getInputStream().read();
            } catch (SocketException why) {
                System.out.println("closed by another thread: " + why.getMessage());
            }
            closes.join();
        }
        try (Selector selector = Selector.open(); SocketChannel channel = SocketChannel.open(new InetSocketAddress("127.0.0.1", port))) {
            warms(channel.socket());
            channel.configureBlocking(false);
            SelectionKey key = channel.register(selector, SelectionKey.OP_READ);
            System.out.println("nothing: " + selector.select(20));
            Thread wakes = new Thread(selector::wakeup);
            wakes.start();
            System.out.println("woken: " + selector.select());
            channel.write(ByteBuffer.wrap(new byte[] {1}));
            System.out.println("bytes: " + selector.select(5000) + " " + key.isReadable());
            selector.selectedKeys().clear();
            System.out.println("again: " + selector.select(5000));
            key.cancel();
            System.out.println("cancelled: " + selector.selectNow());
            channel.configureBlocking(true);
            ByteBuffer one = ByteBuffer.allocate(10);
            System.out.println("read: " + channel.read(one));
            channel.shutdownOutput();
            System.out.println("the end: " + channel.read(one));
        }
    }

    static void client(int selecting, int sockets, int http) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<String>> all = new ArrayList<>();
        for (int at = 0; at < 4; at++) {
            int seed = at;
            all.add(threads.submit(() -> echoes(selecting, seed)));
            all.add(threads.submit(() -> echoes(sockets, seed)));
        }
        all.add(threads.submit(() -> selectsAsClient(selecting)));
        for (Future<String> one : all) System.out.println(one.get());
        edges(sockets);
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        for (int size : new int[] {0, 1, 1000, 100_000, 3_000_000}) {
            for (int turn = 0; turn < 20; turn++) {
                HttpRequest.BodyPublisher body = HttpRequest.BodyPublishers.ofByteArray(data(size + turn, size));
                HttpRequest request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + http + "/x")).POST(body).build();
                HttpResponse<byte[]> response = client.send(request, HttpResponse.BodyHandlers.ofByteArray());
                if (turn == 19) System.out.println(response.statusCode() + " " + hash(response.body()));
            }
        }
        client.send(HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + http + "/over")).build(), HttpResponse.BodyHandlers.discarding());
        System.exit(0);
    }

    public static void main(String[] words) throws Exception {
        if (words[0].equals("server")) server();
        else client(Integer.parseInt(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]));
    }
}
