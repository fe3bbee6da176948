# frozen_string_literal: true

require "securerandom"
require "uri"

module MailAppliance
  # A client of one appliance. Threads may share it.
  #
  #   mail = MailAppliance::Client.new("https://mail.example.com", username: "…", password: "…")
  #   sent = mail.send_email(from: "shop@example.com", to: "ann@example.net", subject: "Hello", text: "Hi Ann")
  #   mail.wait(sent.id).status # => "delivered"
  class Client
    # Either +username+ and +password+, or +token+ (an API key or a JWT). What is not given comes from
    # MAIL_APPLIANCE_URL, MAIL_APPLIANCE_USERNAME, MAIL_APPLIANCE_PASSWORD and MAIL_APPLIANCE_TOKEN.
    #
    # +retries+:: how often a request is repeated after a lost connection, a time-out, 429, 503 or an
    #             idempotency_in_progress; 0 for never
    # +connect_timeout+:: seconds for a connection with its TLS handshake
    # +timeout+:: seconds for one attempt, until the whole answer is read
    # +transport+:: replaces Transport, and the +connect_timeout+ with it
    def initialize(url = nil, username: nil, password: nil, token: nil, retries: 3, connect_timeout: 5, timeout: 30,
                   transport: nil)
      given = { url: url, username: username, password: password, token: token }
      @requests = RequestBuilder.new(given, ENV)
      @retries = check(:retries, retries, retries.is_a?(Integer) && retries >= 0, "an Integer of 0 or more")
      @timeout = check_seconds(:timeout, timeout)
      check_seconds(:connect_timeout, connect_timeout)
      @transport = transport || Transport.new(URI(@requests.url), connect_timeout: connect_timeout)
    end

    # Sends a message and returns a SendResult. +to+, +cc+, +bcc+ and +tags+ are a String or an Array of them;
    # +attachments+ is an Array of Attachment; +scheduled_at+ is a Time or a String (RFC 3339); what is nil is
    # left out. Without an +idempotency_key+ one is made, the same for all retries.
    def send_email(from:, to:, subject: nil, text: nil, html: nil, cc: nil, bcc: nil, reply_to: nil,
                   template: nil, variables: nil, headers: nil, tags: nil, attachments: nil,
                   scheduled_at: nil, metadata: nil, idempotency_key: nil)
      fields = { from: from, to: to, cc: cc, bcc: bcc, reply_to: reply_to, subject: subject, text: text, html: html,
                 template: template, variables: variables, headers: headers, tags: tags, attachments: attachments,
                 scheduled_at: scheduled_at, metadata: metadata }
      with_key(idempotency_key) { |key| post(SendResult, @requests.send_email(fields, key), call(key), key) }
    end

    # Sends up to 100 messages in one request with one key and returns a BatchResult. Each is a Hash with the arguments
    # of #send_email. One that cannot be sent refuses the batch, and InvalidRequest names it, as in `emails[3].to: …`;
    # with <tt>on_error: "skip"</tt> the others are accepted.
    def send_batch(messages, on_error: nil, idempotency_key: nil)
      with_key(idempotency_key) do |key|
        request = @requests.send_batch(messages, on_error, key)
        supported("POST /emails/batch", 404, 405) { post(BatchResult, request, call(key, "results" => Array), key) }
      end
    end

    # The Message with this id.
    def get(id)
      message(@requests.about(id))
    end

    # Cancels what is still queued or scheduled of a message and returns it. Raises Conflict if nothing is; if the answer
    # to a first attempt was lost, that can mean that this attempt succeeded, and #get shows it.
    def cancel(id)
      request = @requests.about(id, verb: "POST", action: "/cancel", body: "")
      message(request)
    rescue NotFound => error
      # An older server and an unknown id both are 404. A GET tells them apart: 405 only where the path has a route.
      begin
        supported("POST #{request.uri.path}", 404) { message(@requests.about(id, action: "/cancel")) }
      rescue ApiError => route
        raise route unless route.status == 405
      end
      raise error
    end

    # Moves a scheduled message to another time, a Time or a String, and returns it. Raises Conflict once the message is due.
    def reschedule(id, scheduled_at)
      request = @requests.reschedule(id, scheduled_at)
      supported("PATCH #{request.uri.path}", 405) { message(request) }
    end

    # Asks for the message until it is final, and returns it. Raises WaitTimeout if it is not final after +timeout+
    # seconds.
    def wait(id, timeout: 60)
      check(:timeout, timeout, timeout.is_a?(Numeric) && !timeout.negative?, "a number of seconds")
      Message.from_json(run(@requests.about(id), Plan::Wait.new(call, limit: timeout)).object)
    end

    # Closes the connections that are kept open.
    def close
      @transport.close
    end

    # Without the credentials.
    def inspect
      "#<#{self.class} #{@requests.url}>"
    end

    private

    def call(idempotency_key = nil, required = { "id" => String })
      Plan::Call.new(retries: @retries, timeout: @timeout, idempotency_key: idempotency_key, required: required)
    end

    def message(request)
      Message.from_json(run(request, call).object)
    end

    def post(type, request, state, key)
      done = run(request, state)
      replayed = done.answer.headers["idempotent-replayed"] == "true"
      type.from_json(done.object, idempotency_key: key, replayed: replayed)
    end

    # Calls the block with the given key, or a new one, which is also on a ConfigurationError.
    def with_key(given)
      key = given.nil? ? "auto_#{SecureRandom.uuid}" : given
      yield key
    rescue ConfigurationError => error
      raise ConfigurationError.new(error.message, idempotency_key: key)
    end

    def supported(route, *missing)
      yield
    rescue ApiError => error
      raise NotSupported.or_same(error, route, *missing)
    end

    # Follows a plan to its Plan::Return. The plan ends the loop.
    def run(request, state)
      start = monotonic
      loop do
        outcome = @transport.call(request, timeout: state.timeout(elapsed: monotonic - start))
        case step = state.after(outcome, random: Random.rand, now: Time.now, elapsed: monotonic - start)
        when Plan::Return then return step
        when Plan::Raise then raise step.error, cause: step.cause
        when Plan::Retry
          pause(step.seconds)
          state = step.state
        end
      end
    end

    def pause(seconds)
      sleep(seconds)
    end

    def monotonic
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def check_seconds(name, value)
      check(name, value, value.is_a?(Numeric) && value.positive?, "a positive number of seconds")
    end

    def check(name, value, accepted, expected)
      accepted ? value : raise(ConfigurationError, "#{name}: expected #{expected}")
    end
  end
end
