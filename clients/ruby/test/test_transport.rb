# frozen_string_literal: true

require "helper"

# Connections, time-outs and limits against real servers on loopback ports.
class TestTransport < LibraryTest
  include MailAppliance

  LONG = 60 # seconds; a time-out that must not be reached

  def elapsed
    start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    yield
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - start
  end

  def lost(server, **options)
    assert_raises(ConnectionFailed) { client(server.url, retries: 0, **options).send_email(**MESSAGE) }
  end

  def test_one_connection_for_requests_one_after_the_other
    script = [answer(202), error(400, "invalid_request"), error(503, "temporary_failure"), answer(202),
              error(404, "not_found")]
    serving(*script) do |server|
      mail = client(server.url)
      mail.send_email(**MESSAGE)
      assert_raises(InvalidRequest) { mail.send_email(**MESSAGE) }
      mail.send_email(**MESSAGE)
      assert_raises(NotFound) { mail.get("msg_2") }
      assert_equal [1] * 5, server.requests.map(&:connection)
    end
  end

  def test_a_connection_that_the_server_closed_meanwhile
    serving(LoopbackServer.close_after(answer(202)), answer(202), LoopbackServer.close_after(answer(202))) do |server|
      mail = client(server.url)
      4.times { mail.send_email(**MESSAGE) }
      assert_operator server.requests.size, :>=, 4
      assert_operator server.connections, :>=, 3
    end
  end

  def test_an_announced_end_and_a_chunked_answer
    chunked = "HTTP/1.1 202 OK\r\nTransfer-Encoding: chunked\r\n\r\n" \
              "5\r\n{\"id\"\r\n7\r\n:\"msg_\"\r\n1\r\n}\r\n0\r\n\r\n"
    announced = LoopbackServer.close_after(answer(202, ACCEPTED, "Connection" => "close"))
    serving(chunked, announced, answer(202)) do |server|
      mail = client(server.url, retries: 0)
      assert_equal %w[msg_ msg_1 msg_1], Array.new(3) { mail.send_email(**MESSAGE).id }
      assert_equal [1, 1, 2], server.requests.map(&:connection)
    end
  end

  # A proxy that answers everything itself; what it was asked, and with which password.
  def test_the_proxy_of_the_scheme
    asked = []
    proxy = TCPServer.new("127.0.0.1", 0)
    thread = Thread.new do
      loop do
        socket = proxy.accept
        lines = socket.each_line.take_while { |line| line != "\r\n" }
        asked << [lines.first.split[0, 2].join(" "), lines.grep(/\AProxy-Authorization/i).first.to_s.split.last]
        socket.write("HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        socket.close
      end
    end
    url = "http://me:a%3Ab@127.0.0.1:#{proxy.addr[1]}"
    password = ["me:a:b"].pack("m0")
    with_environment("http_proxy" => nil, "https_proxy" => url, "no_proxy" => nil) do
      assert_raises(ConnectionFailed) { client("https://mail.test", retries: 0).get("msg_1") }
      assert_equal [["CONNECT mail.test:443", password]], asked
    end
    with_environment("http_proxy" => url, "https_proxy" => nil, "no_proxy" => nil) do
      assert_raises(ApiError) { client("http://mail.test", retries: 0).get("msg_1") }
      assert_equal ["GET http://mail.test/emails/msg_1", password], asked.last
    end
    with_environment("http_proxy" => url, "no_proxy" => "mail.test") do
      assert_raises(ConnectionFailed) { client("http://mail.test", retries: 0).get("msg_1") }
      assert_equal 2, asked.size
    end
  ensure
    thread.kill
    proxy.close
  end

  def test_threads_share_a_client
    serving do |server|
      mail = client(server.url)
      2.times do
        keys = Array.new(16) { Thread.new { mail.send_email(**MESSAGE).idempotency_key } }.map(&:value)
        assert_equal 16, keys.uniq.size
      end
      assert_equal 32, server.requests.size
      assert_operator server.connections, :<=, 16
    end
  end

  def test_close_ends_the_kept_connections_and_the_client_works_on
    serving do |server|
      mail = client(server.url)
      mail.send_email(**MESSAGE)
      mail.close
      mail.send_email(**MESSAGE)
      assert_equal [1, 2], server.requests.map(&:connection)
    end
  end

  def test_a_child_process_has_its_own_connections
    serving do |server|
      mail = client(server.url, retries: 0)
      mail.send_email(**MESSAGE)
      child = fork do
        mail.send_email(**MESSAGE)
        exit!(0)
      rescue StandardError
        exit!(1)
      end
      assert_predicate Process.wait2(child).last, :success?
      mail.send_email(**MESSAGE)
      assert_equal [1, 2, 1], server.requests.map(&:connection)
    end
  end

  def test_nothing_listens
    closed = TCPServer.new("127.0.0.1", 0)
    url = "http://127.0.0.1:#{closed.addr[1]}"
    closed.close
    failed = assert_raises(ConnectionFailed) { client(url, retries: 1).send_email(**MESSAGE) }
    assert_instance_of Errno::ECONNREFUSED, failed.cause
    assert_equal 1, @pauses.size
  end

  def test_an_unknown_host
    failed = assert_raises(ConnectionFailed) { client("http://mail.invalid", retries: 0).send_email(**MESSAGE) }
    assert_kind_of SocketError, failed.cause
  end

  # A backlog that is full: the connection is never made.
  def test_connect_timeout
    listener = Socket.new(:INET, :STREAM)
    listener.bind(Addrinfo.tcp("127.0.0.1", 0))
    listener.listen(0)
    waiting = Array.new(4) { Socket.new(:INET, :STREAM) }
    waiting.each { |socket| socket.connect_nonblock(listener.local_address, exception: false) }
    url = "http://127.0.0.1:#{listener.local_address.ip_port}"
    mail = client(url, retries: 0, connect_timeout: 0.3, timeout: LONG)
    assert_includes 0.3..(LONG / 2), elapsed { assert_raises(ConnectionFailed) { mail.send_email(**MESSAGE) } }
  ensure
    [listener, *waiting].each(&:close)
  end

  # A server that accepts and never speaks: the TLS handshake belongs to the connection.
  def test_connect_timeout_of_the_handshake
    listener = TCPServer.new("127.0.0.1", 0)
    url = "https://127.0.0.1:#{listener.addr[1]}"
    mail = client(url, retries: 0, connect_timeout: 0.3, timeout: LONG)
    assert_includes 0.3..(LONG / 2), elapsed { assert_raises(ConnectionFailed) { mail.send_email(**MESSAGE) } }
  ensure
    listener.close
  end

  def test_the_timeout_covers_the_whole_answer_however_slowly_it_arrives
    {
      "no answer" => LoopbackServer::HANG,
      "status line" => LoopbackServer.trickle("HTTP/1.1 202 ", "O"),
      "head" => LoopbackServer.trickle("HTTP/1.1 202 OK\r\n", "X-A: b\r\n"),
      "body" => LoopbackServer.trickle("HTTP/1.1 202 OK\r\nContent-Length: 100000\r\n\r\n", " "),
      "chunks" => LoopbackServer.trickle("HTTP/1.1 202 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"),
      "informational" => LoopbackServer.trickle("", "HTTP/1.1 102 Processing\r\n\r\n")
    }.each do |name, step|
      serving(step) do |server|
        seconds = elapsed { assert_match(/within 0.25 s/, lost(server, timeout: 0.25).message, name) }
        assert_includes 0.25..(LONG / 2), seconds, name
      end
    end
  end

  def test_the_timeout_covers_a_request_that_is_not_read
    listener = TCPServer.new("127.0.0.1", 0)
    mail = client("http://127.0.0.1:#{listener.addr[1]}", retries: 0, timeout: 0.5)
    large = Attachment.from_bytes("x" * 8_000_000, filename: "a")
    assert_includes 0.5..(LONG / 2), elapsed {
      assert_raises(ConnectionFailed) { mail.send_email(**MESSAGE, attachments: [large]) }
    }
  ensure
    listener.close
  end

  def test_a_timeout_is_retried_on_a_new_connection
    serving(LoopbackServer::HANG) do |server|
      assert_equal "msg_1", client(server.url, timeout: 1).send_email(**MESSAGE).id
      connections = server.requests.map(&:connection)
      assert_operator connections.size, :>, 1
      assert_equal connections.uniq, connections
    end
  end

  def test_a_thread_that_is_interrupted_leaves_no_used_connection
    stopped = Class.new(StandardError)
    serving(LoopbackServer::HANG) do |server|
      mail = client(server.url, timeout: LONG)
      sender = Thread.new { assert_raises(stopped) { mail.send_email(**MESSAGE) } }
      Timeout.timeout(LONG) { sleep 0.01 until server.requests.size == 1 }
      sender.raise(stopped)
      sender.join
      assert_equal "msg_1", mail.send_email(**MESSAGE).id
      assert_equal [1, 2], server.requests.map(&:connection)
    end
  end

  def test_answers_that_are_not_whole
    [
      "HTTP/1.1 202 OK\r\nContent-Length: 100\r\n\r\n{\"id\":\"msg_1\"}",
      "HTTP/1.1 202 OK\r\nTransfer-Encoding: chunked\r\n\r\ne\r\n{\"id\":\"msg_1\"}\r\n",
      "HTTP/1.1 202 OK\r\nContent-Le", "HTTP/1.1 202", "", "SSH-2.0-OpenSSH\r\n\r\n",
      "HTTP/1.1 202 OK\r\nContent-Length: x\r\n\r\n{\"id\":\"msg_1\"}"
    ].each do |bytes|
      serving(*Array.new(2, LoopbackServer.close_after(bytes))) do |server|
        lost(server)
        assert_equal "msg_1", client(server.url, retries: 1).send_email(**MESSAGE).id
      end
    end
  end

  def test_an_answer_without_a_length_ends_with_the_connection
    serving(LoopbackServer.close_after("HTTP/1.1 202 OK\r\n\r\n{\"id\":\"msg_1\"}")) do |server|
      assert_equal "msg_1", client(server.url, retries: 0).send_email(**MESSAGE).id
    end
  end

  def test_answers_without_a_body
    serving("HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 50\r\n\r\n") do |server|
      mail = client(server.url, retries: 0)
      assert_equal [204, 304], Array.new(2) { assert_raises(ApiError) { mail.get("msg_1") }.status }
    end
  end

  # More than 16 MiB would arrive; the rest is not read.
  def test_the_size_of_an_answer_is_limited
    written = 0
    endless = lambda do |socket|
      socket.write("HTTP/1.1 200 OK\r\n\r\n")
      loop { written += socket.write("x" * 1_000_000) }
    end
    serving(endless, answer(200)) do |server|
      mail = client(server.url, retries: 0, timeout: LONG)
      failed = assert_raises(ApiError) { mail.get("msg_1") }
      assert_equal [200, nil], [failed.status, failed.code]
      assert_operator written, :<, 64_000_000
      assert_equal "msg_1", mail.get("msg_1").id
      assert_equal [1, 2], server.requests.map(&:connection)
    end
  end

  def test_the_largest_answer_is_read
    body = JSON.generate({ id: "msg_1", subject: "x" * ((16 * 1024 * 1024) - 27) })
    assert_equal Transport::LONGEST_BODY, body.bytesize
    serving(answer(200, body)) { |server| assert_equal "msg_1", client(server.url, timeout: LONG).get("msg_1").id }
  end

  def test_answers_are_not_compressed
    serving do |server|
      client(server.url).send_email(**MESSAGE)
      assert_equal "identity", server.requests.first.headers["accept-encoding"]
    end
  end

  # A server's context with a certificate of its own for +name+; +trusted+: by this process, from now on.
  def tls(name, trusted:)
    key = OpenSSL::PKey::EC.generate("prime256v1")
    certificate = OpenSSL::X509::Certificate.new
    certificate.version = 2
    certificate.serial = 1
    certificate.subject = certificate.issuer = OpenSSL::X509::Name.parse("/CN=#{SecureRandom.hex}")
    certificate.public_key = key
    certificate.not_before = Time.now - 3600
    certificate.not_after = Time.now + 3600
    extensions = OpenSSL::X509::ExtensionFactory.new(certificate, certificate)
    certificate.add_extension(extensions.create_extension("basicConstraints", "CA:TRUE", true))
    certificate.add_extension(extensions.create_extension("subjectAltName", name))
    certificate.sign(key, "SHA256")
    OpenSSL::SSL::SSLContext::DEFAULT_CERT_STORE.add_cert(certificate) if trusted
    OpenSSL::SSL::SSLContext.new.tap { |context| context.add_certificate(certificate, key) }
  end

  def test_tls
    serving(tls: tls("IP:127.0.0.1", trusted: true)) do |server|
      mail = client(server.url)
      2.times { assert_equal "msg_1", mail.send_email(**MESSAGE).id }
      assert_equal [1, 1], server.requests.map(&:connection)
    end
  end

  def test_a_certificate_that_does_not_verify_is_not_retried
    [tls("IP:127.0.0.1", trusted: false), tls("DNS:mail.example.com", trusted: true)].each do |context|
      serving(tls: context) do |server|
        failed = assert_raises(ConnectionFailed) { client(server.url).send_email(**MESSAGE) }
        assert_kind_of OpenSSL::SSL::SSLError, failed.cause
        assert_match(/\Aauto_/, failed.idempotency_key)
        assert_equal [1, 0], [server.connections, @pauses.size]
      end
    end
  end

  def test_a_lost_handshake_is_retried
    listener = TCPServer.new("127.0.0.1", 0)
    accepting = Thread.new { 2.times { listener.accept.close } }
    mail = client("https://127.0.0.1:#{listener.addr[1]}", retries: 1)
    assert_raises(ConnectionFailed) { mail.send_email(**MESSAGE) }
    assert_equal 1, @pauses.size
    assert accepting.join(LONG)
  ensure
    listener.close
  end
end
