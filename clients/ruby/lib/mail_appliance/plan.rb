# frozen_string_literal: true

require "json"
require "time"

module MailAppliance
  # An HTTP answer as a transport returns it: +status+ an Integer, +headers+ a Hash with names in lower case,
  # +body+ a String.
  Answer = Struct.new(:status, :headers, :body, keyword_init: true)

  # What a transport returns when no whole answer came. +retryable+ is false for a certificate that does not verify;
  # +cause+ is the exception behind it, or nil.
  Failure = Struct.new(:message, :retryable, :cause, keyword_init: true)

  # Internal. What follows an attempt. Pure: time and randomness are arguments, a state is never changed, and each step
  # is one of these three.
  module Plan
    # The call is done: the JSON +object+ of its +answer+.
    Return = Struct.new(:object, :answer)
    # Pause for +seconds+, make the same request again and ask +state+ about its outcome.
    Retry = Struct.new(:seconds, :state)
    # The call has failed with +error+, for +cause+.
    Raise = Struct.new(:error, :cause)

    # One call with at most +retries+ repetitions, each attempt within +timeout+ seconds.
    #
    #   outcome                                     retries left             none left
    #   2xx, an object with an id (or +required+)   Return                   Return
    #   429, 503, 409 idempotency_in_progress       Retry, unless its        Raise ApiError
    #                                               Retry-After is too long
    #   any other answer                            Raise ApiError           Raise ApiError
    #   failure that may be repeated                Retry                    Raise ConnectionFailed
    #   failure that may not                        Raise ConnectionFailed   Raise ConnectionFailed
    class Call
      LONGEST_RETRY_AFTER = 30 # seconds; a longer one is for the caller to wait
      FIRST_PAUSE = 0.5 # seconds at most before the first retry, doubled for each further one
      LONGEST_PAUSE = 8
      EXCERPT = 200 # characters of an unreadable answer in an error's message

      # +required+: the field of a result, and its class.
      def initialize(retries:, timeout:, idempotency_key: nil, failed: 0, required: { "id" => String })
        @retries = retries
        @timeout = timeout
        @idempotency_key = idempotency_key
        @failed = failed
        @required = required
      end

      # The seconds for the next attempt, +elapsed+ seconds after the start.
      def timeout(elapsed:)
        @timeout
      end

      # The step after an Answer or a Failure. +random+ is in 0...1, +now+ a Time.
      def after(outcome, random:, now:, elapsed:)
        outcome.is_a?(Failure) ? after_failure(outcome, random) : after_answer(outcome, random, now)
      end

      private

      def after_failure(failure, random)
        return again(nil, random) if failure.retryable && retries_left?

        Raise.new(ConnectionFailed.new(failure.message, idempotency_key: @idempotency_key), failure.cause)
      end

      def after_answer(answer, random, now)
        object = json_object(answer.body)
        return Return.new(object, answer) if answer.status.between?(200, 299) && result?(object)

        error = api_error(answer, object, retry_after_seconds(answer.headers["retry-after"], now))
        return Raise.new(error) unless retried?(error) && retries_left?
        return Raise.new(error) if error.retry_after && error.retry_after > LONGEST_RETRY_AFTER

        again(error.retry_after, random)
      end

      def result?(object)
        @required.all? { |name, type| object[name].is_a?(type) }
      end

      def retried?(error)
        [429, 503].include?(error.status) || (error.status == 409 && error.code == "idempotency_in_progress")
      end

      def retries_left?
        @failed < @retries
      end

      def again(asked, random)
        seconds = asked ? asked * (1 + (random * 0.1)) : random * [LONGEST_PAUSE, FIRST_PAUSE * (2**@failed)].min
        Retry.new(seconds, Call.new(retries: @retries, timeout: @timeout, idempotency_key: @idempotency_key,
                                    failed: @failed + 1, required: @required))
      end

      # RFC 9110 10.2.3: seconds or an HTTP date; nil if it is neither.
      def retry_after_seconds(value, now)
        value = value.to_s.strip
        return value.to_i if value.match?(/\A\d+\z/)

        [(Time.httpdate(value) - now).ceil, 0].max
      rescue ArgumentError
        nil
      end

      def api_error(answer, object, retry_after)
        code, message = object.values_at("code", "error")
        code = message = nil unless code.is_a?(String) && message.is_a?(String)
        request_id = object["request_id"] if object["request_id"].is_a?(String)
        ApiError::BY_CODE.fetch(code, ApiError).new(
          message || "#{answer.status}: #{excerpt(answer.body)}",
          status: answer.status, code: code, request_id: request_id || answer.headers["x-request-id"],
          retry_after: retry_after, idempotency_key: @idempotency_key
        )
      end

      # An empty Hash for what is not a JSON object.
      def json_object(body)
        text = body.dup.force_encoding(Encoding::UTF_8)
        object = JSON.parse(text, freeze: true) if text.valid_encoding?
        object.is_a?(Hash) ? object : {}
      rescue JSON::ParserError
        {}
      end

      def excerpt(body)
        body.byteslice(0, 4 * EXCERPT).force_encoding(Encoding::UTF_8).scrub[0, EXCERPT].strip
      end
    end

    # Repeats a Call until its message is final, at most for +limit+ seconds: after pauses of 0.5 s, each 1.5 times the
    # last, at most 10 s. No pause goes past the end, and no attempt by more than a second.
    class Wait
      FIRST_PAUSE = 0.5 # seconds
      LONGEST_PAUSE = 10
      GROWTH = 1.5
      LAST_ATTEMPT = 1 # seconds that an attempt has at least

      # +current+ is the state of the call that is being made, +last+ the Message that was seen last.
      def initialize(call, limit:, pause: FIRST_PAUSE, current: call, last: nil)
        @call = call
        @limit = limit
        @pause = pause
        @current = current
        @last = last
      end

      def timeout(elapsed:)
        [@current.timeout(elapsed: elapsed), [@limit - elapsed, LAST_ATTEMPT].max].min
      end

      def after(outcome, random:, now:, elapsed:)
        left = @limit - elapsed
        case step = @current.after(outcome, random: random, now: now, elapsed: elapsed)
        when Return then after_message(Message.from_json(step.object), step, left)
        when Retry then step.seconds > left ? timed_out(@last) : Retry.new(step.seconds, with(current: step.state))
        when Raise then left <= 0 && cut_short?(outcome) ? timed_out(@last) : step
        end
      end

      private

      def after_message(message, step, left)
        return step if message.final?
        return timed_out(message) unless left.positive?

        Retry.new([@pause, left].min, with(pause: [@pause * GROWTH, LONGEST_PAUSE].min, last: message))
      end

      def cut_short?(outcome)
        outcome.is_a?(Failure) && outcome.retryable
      end

      def with(pause: @pause, current: @call, last: @last)
        Wait.new(@call, limit: @limit, pause: pause, current: current, last: last)
      end

      def timed_out(message)
        status = message ? message.status : "unknown"
        Raise.new(WaitTimeout.new("not final after #{@limit} s, status: #{status}", last_message: message))
      end
    end
  end
end
