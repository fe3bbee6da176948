# frozen_string_literal: true

ROOT = File.expand_path("..", __dir__)

# A warning about a file of this library is an error; those about other gems are not shown.
module FailOnWarning
  def warn(message, **)
    raise message if message.include?(ROOT)
  end
end
Warning.extend(FailOnWarning)
$VERBOSE = true

require "minitest/autorun"
require "json"
require "mail_appliance"
require_relative "loopback_server"

%w[URL USERNAME PASSWORD TOKEN].each { |name| ENV.delete("MAIL_APPLIANCE_#{name}") }
%w[http_proxy https_proxy HTTP_PROXY HTTPS_PROXY].each { |name| ENV.delete(name) }

class LibraryTest < Minitest::Test
  MESSAGE = { from: "shop@example.com", to: "ann@example.net", subject: "Hello", text: "Hi Ann" }.freeze
  ACCEPTED = { id: "msg_1", status: "queued", source: "api", request_id: "req_1" }.freeze

  # A server on a loopback port for the time of the block; see LoopbackServer for the script.
  def serving(*script, **options)
    server = LoopbackServer.new(script, **options)
    yield server
  ensure
    server&.stop
  end

  # A client without pauses between retries, whose time-outs are long enough for a busy machine.
  def client(url, **options)
    client = MailAppliance::Client.new(url, token: "ma_live_x", **options)
    pauses = @pauses = []
    client.define_singleton_method(:pause) { |seconds| pauses << seconds }
    client
  end

  def answer(status, object = ACCEPTED, headers = {})
    LoopbackServer.answer(status, object.is_a?(String) ? object : JSON.generate(object), headers)
  end

  def error(status, code, headers = {})
    answer(status, { error: "Refused: #{code}", code: code, request_id: "req_9" }, headers)
  end

  def with_environment(variables)
    before = ENV.to_h
    ENV.update(variables)
    yield
  ensure
    ENV.replace(before)
  end
end
