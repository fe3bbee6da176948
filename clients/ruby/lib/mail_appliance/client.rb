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
    # +attachments+ is an Array of Attachment; what is nil is left out. Without an +idempotency_key+ one is made, the
    # same for all retries.
    def send_email(from:, to:, subject: nil, text: nil, html: nil, cc: nil, bcc: nil, reply_to: nil,
                   template: nil, variables: nil, headers: nil, tags: nil, attachments: nil, idempotency_key: nil)
      key = idempotency_key.nil? ? "auto_#{SecureRandom.uuid}" : idempotency_key
      fields = { from: from, to: to, cc: cc, bcc: bcc, reply_to: reply_to, subject: subject, text: text, html: html,
                 template: template, variables: variables, headers: headers, tags: tags, attachments: attachments }
      done = run(@requests.send_email(fields, key), call(key))
      replayed = done.answer.headers["idempotent-replayed"] == "true"
      SendResult.from_json(done.object, idempotency_key: key, replayed: replayed)
    rescue ConfigurationError => error
      raise ConfigurationError.new(error.message, idempotency_key: key)
    end

    # The Message with this id.
    def get(id)
      Message.from_json(run(@requests.get(id), call).object)
    end

    # Asks for the message until it is final, and returns it. Raises WaitTimeout if it is not final after +timeout+
    # seconds.
    def wait(id, timeout: 60)
      check(:timeout, timeout, timeout.is_a?(Numeric) && !timeout.negative?, "a number of seconds")
      Message.from_json(run(@requests.get(id), Plan::Wait.new(call, limit: timeout)).object)
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

    def call(idempotency_key = nil)
      Plan::Call.new(retries: @retries, timeout: @timeout, idempotency_key: idempotency_key)
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
