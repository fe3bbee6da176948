# frozen_string_literal: true

require "helper"

# The client against a real server on a loopback port.
class TestClient < LibraryTest
  include MailAppliance

  def test_a_send
    accepted = { id: "msg_1", status: "queued", source: "api", request_id: "req_1", to: ["ann@example.net"],
                 credits_reserved: 1, colour: "red" }
    serving(answer(202, accepted)) do |server|
      sent = client("#{server.url}/").send_email(**MESSAGE, tags: %w[a b])
      assert_equal ["msg_1", "queued", "api", "req_1", ["ann@example.net"], 1, nil, false],
                   sent.to_h.values_at(:id, :status, :source, :request_id, :to, :credits_reserved, :cc, :replayed)
      request = server.requests.first
      assert_equal ["POST", "/emails"], [request.verb, request.path]
      assert_equal MESSAGE.merge(tags: %w[a b]), JSON.parse(request.body, symbolize_names: true)
      assert_equal sent.idempotency_key, request.headers["idempotency-key"]
      assert_equal "Bearer ma_live_x", request.headers["authorization"]
      assert_equal "application/json", request.headers["content-type"]
      assert_equal "application/json", request.headers["accept"]
      assert_equal "mail-appliance-ruby/1.2.0 ruby/#{RUBY_VERSION}", request.headers["user-agent"]
    end
  end

  def test_automatic_keys_are_unique_uuids
    serving do |server|
      mail = client(server.url)
      keys = Array.new(3) { mail.send_email(**MESSAGE).idempotency_key }
      keys.each { |key| assert_match(/\Aauto_\h{8}-\h{4}-4\h{3}-[89ab]\h{3}-\h{12}\z/, key) }
      assert_equal keys, keys.uniq
      assert_equal keys, server.requests.map { |request| request.headers["idempotency-key"] }
    end
  end

  def test_retries_send_the_same_bytes_with_the_same_key
    script = [LoopbackServer::RESET, LoopbackServer.close_after("HTTP/1.1 202 OK\r\nContent-Length: 50\r\n\r\n{\"id\""),
              error(503, "temporary_failure"), answer(202, ACCEPTED, "Idempotent-Replayed" => "true")]
    serving(*script) do |server|
      sent = client(server.url).send_email(**MESSAGE)
      assert_predicate sent, :replayed?
      assert_equal 4, server.requests.size
      assert_equal 1, server.requests.map(&:body).uniq.size
      assert_equal [sent.idempotency_key], server.requests.map { |each| each.headers["idempotency-key"] }.uniq
      assert_equal 3, @pauses.size
    end
  end

  def test_retry_after_is_the_pause
    serving(error(429, "rate_limited", "Retry-After" => "2"), error(409, "idempotency_in_progress")) do |server|
      client(server.url).send_email(**MESSAGE, idempotency_key: "order 7")
      assert_includes 2.0..2.2, @pauses[0]
      assert_includes 0.0..1.0, @pauses[1]
      assert_equal ["order 7"], server.requests.map { |each| each.headers["idempotency-key"] }.uniq
    end
  end

  def test_a_real_pause
    serving(error(503, "temporary_failure", "Retry-After" => "1")) do |server|
      start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      Client.new(server.url, token: "t").send_email(**MESSAGE)
      assert_operator Process.clock_gettime(Process::CLOCK_MONOTONIC) - start, :>=, 1
    end
  end

  def test_an_error_shows_all
    serving(error(429, "rate_limited", "Retry-After" => "3600", "X-Request-ID" => "req_h")) do |server|
      failed = assert_raises(RateLimited) { client(server.url).send_email(**MESSAGE, idempotency_key: "k") }
      assert_equal [429, "rate_limited", "Refused: rate_limited"], [failed.status, failed.code, failed.message]
      assert_equal ["req_9", 3600, "k"], [failed.request_id, failed.retry_after, failed.idempotency_key]
      assert_kind_of ApiError, failed
      assert_kind_of Error, failed
      assert_equal 1, server.requests.size
    end
  end

  def test_what_is_not_retried
    script = [error(409, "idempotency_conflict"), error(402, "insufficient_credits"), answer(502, "<html>Bad</html>"),
              answer(307, "", "Location" => "/elsewhere"), answer(202, "[]")]
    serving(*script) do |server|
      mail = client(server.url)
      classes = Array.new(5) { assert_raises(ApiError) { mail.send_email(**MESSAGE) }.class }
      assert_equal [IdempotencyConflict, InsufficientCredits, ApiError, ApiError, ApiError], classes
      assert_equal 5, server.requests.size
      assert_empty @pauses
    end
  end

  def test_retries_can_be_switched_off
    serving(LoopbackServer::RESET, error(503, "temporary_failure")) do |server|
      mail = client(server.url, retries: 0)
      failed = assert_raises(ConnectionFailed) { mail.send_email(**MESSAGE) }
      assert_match(/\Aauto_/, failed.idempotency_key)
      assert_kind_of SystemCallError, failed.cause
      assert_raises(TemporaryFailure) { mail.send_email(**MESSAGE) }
      assert_equal 2, server.requests.size
    end
  end

  def test_the_last_error_is_raised_when_the_retries_are_used_up
    serving(*Array.new(3, error(503, "service_unavailable"))) do |server|
      assert_raises(ServiceUnavailable) { client(server.url, retries: 2).send_email(**MESSAGE) }
      assert_equal 3, server.requests.size
    end
  end

  def test_mistakes_are_found_before_any_request
    serving do |server|
      mail = client(server.url)
      failed = assert_raises(ConfigurationError) { mail.send_email(**MESSAGE, idempotency_key: " k") }
      assert_equal " k", failed.idempotency_key
      failed = assert_raises(ConfigurationError) { mail.send_email(**MESSAGE, text: "\xFF") }
      assert_match(/\Aauto_/, failed.idempotency_key)
      assert_raises(ConfigurationError) { mail.get("") }
      assert_raises(ConfigurationError) { mail.wait("msg_1", timeout: -1) }
      assert_raises(ArgumentError) { mail.send_email(from: "a@b.c") }
      assert_empty server.requests
    end
  end

  def test_settings_are_checked
    [{ retries: -1 }, { retries: 1.5 }, { retries: nil }, { timeout: 0 }, { timeout: nil }, { connect_timeout: -1 },
     { connect_timeout: "5" }].each do |options|
      failed = assert_raises(ConfigurationError) { Client.new("http://x", token: "t", **options) }
      assert_includes failed.message, options.keys.first.to_s
    end
  end

  def test_the_environment
    serving do |server|
      with_environment("MAIL_APPLIANCE_URL" => server.url, "MAIL_APPLIANCE_TOKEN" => "from_env") do
        Client.new.send_email(**MESSAGE)
      end
      assert_equal "Bearer from_env", server.requests.first.headers["authorization"]
    end
  end

  def test_get_is_retried_and_read
    recipient = { id: "rcp_1", email: "ann@example.net", status: "delivered", last_smtp_code: 250 }
    seen = { id: "msg/1", status: "delivered", recipients: [recipient] }
    serving(LoopbackServer::RESET, answer(200, seen)) do |server|
      message = client("#{server.url}/base/").get("msg/1")
      assert_equal ["msg/1", "delivered", 250], [message.id, message.status, message.recipients.first.last_smtp_code]
      assert_equal ["GET /base/emails/msg%2F1"] * 2, server.requests.map { |each| "#{each.verb} #{each.path}" }
      refute server.requests.first.headers.key?("idempotency-key")
      refute server.requests.first.headers.key?("content-type")
    end
  end

  def test_get_of_an_unknown_id
    serving(error(404, "not_found")) do |server|
      failed = assert_raises(NotFound) { client(server.url).get("msg_1") }
      assert_nil failed.idempotency_key
    end
  end

  def test_wait
    queued = answer(200, { id: "msg_1", status: "queued" })
    serving(queued, queued, queued, answer(200, { id: "msg_1", status: "partial" })) do |server|
      assert_equal "partial", client(server.url).wait("msg_1").status
      assert_equal [0.5, 0.75, 1.125], @pauses
    end
  end

  def test_wait_ends
    serving(*Array.new(2, answer(200, { id: "msg_1", status: "queued" }))) do |server|
      failed = assert_raises(WaitTimeout) { client(server.url).wait("msg_1", timeout: 0) }
      assert_equal "queued", failed.last_message.status
      assert_equal 1, server.requests.size
    end
  end

  def test_wait_ends_while_no_answer_comes
    serving(answer(200, { id: "msg_1", status: "queued" }), LoopbackServer::HANG) do |server|
      failed = assert_raises(WaitTimeout) { Client.new(server.url, token: "t", timeout: 60).wait("msg_1", timeout: 1) }
      assert_equal "queued", failed.last_message.status
    end
  end

  def test_credentials_are_not_shown
    mail = Client.new("http://x/", username: "ada", password: "s3cret")
    assert_equal "#<MailAppliance::Client http://x>", mail.inspect
  end

  def test_another_transport
    transport = Object.new
    def transport.call(request, timeout:)
      raise timeout.to_s unless timeout == 7

      @request = request
      MailAppliance::Answer.new(status: 202, headers: {}, body: '{"id":"msg_1"}')
    end

    def transport.close
      @request.uri.to_s
    end
    mail = Client.new("http://x/", token: "t", timeout: 7, transport: transport)
    assert_equal "msg_1", mail.send_email(**MESSAGE).id
    assert_equal "http://x/emails", mail.close
  end
end
