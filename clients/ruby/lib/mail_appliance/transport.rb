# frozen_string_literal: true

require "net/http"
require "openssl"
require "timeout"

module MailAppliance
  # Makes single requests to one host over Net::HTTP, on connections that are kept open between requests. Threads may
  # share it: a connection belongs to one of them at a time, and a request that finds none idle opens another. After a
  # fork the child opens its own.
  #
  # Any object with the methods #call and #close can stand in for it: Client.new(…, transport: …).
  class Transport
    LONGEST_BODY = 16 * 1024 * 1024 # bytes of an answer that are read; the rest is not
    MOST_IDLE = 32 # connections
    LONGEST_IDLE = 30 # seconds, then a connection is not used again
    UNTRUSTED = /certificate verify failed|does not match the server certificate/

    # A time-out of this class passes through Net::HTTP, which closes its socket on the way.
    class Expired < Timeout::Error; end
    private_constant :Expired

    def initialize(uri, connect_timeout:)
      @uri = uri
      @connect_timeout = connect_timeout
      @lock = Mutex.new
      @idle = []
      @process = Process.pid
    end

    # The Answer to a Request, or a Failure if it has not been read whole after +timeout+ seconds. Nothing is repeated
    # and no redirect is followed.
    def call(request, timeout:)
      connection = take
      answer = within(timeout, "no whole answer") { exchange(connection, request) }
    rescue OpenSSL::SSL::SSLError => error
      failure(error, retryable: !error.message.match?(UNTRUSTED))
    rescue SystemCallError, SocketError, IOError, Timeout::Error,
           Net::ProtocolError, Net::HTTPBadResponse, Net::HTTPHeaderSyntaxError => error
      failure(error, retryable: true)
    ensure
      answer ? put(connection) : finish(connection)
    end

    # Closes the idle connections. The transport can still be used.
    def close
      @lock.synchronize { @idle.slice!(0..) }.each { |connection| finish(connection) }
    end

    private

    def take
      @lock.synchronize do
        @idle.clear if @process != Process.pid # they are the parent's: neither used nor closed here
        @process = Process.pid
        @idle.pop
      end || connection
    end

    def put(connection)
      kept = @lock.synchronize { @idle.push(connection) if @idle.size < MOST_IDLE }
      finish(connection) unless kept
    end

    def finish(connection)
      connection.finish if connection&.started?
    rescue SystemCallError, IOError, OpenSSL::SSL::SSLError
      nil # it was broken, which is why it is closed
    end

    def connection
      # By default Net::HTTP uses http_proxy for https, too. With a proxy set, find_proxy asks DNS whether this is loopback.
      proxy = within(@connect_timeout, "no connection") { @uri.find_proxy }
      http = Net::HTTP.new(@uri.hostname, @uri.port, proxy&.hostname, proxy&.port,
                           *[proxy&.user, proxy&.password].map { |part| part && URI.decode_www_form_component(part) })
      http.use_ssl = @uri.scheme == "https"
      http.max_retries = 0
      http.keep_alive_timeout = LONGEST_IDLE
      http.open_timeout = @connect_timeout
      http.read_timeout = http.write_timeout = nil # by #within
      http
    end

    # Net::HTTP limits each read separately. This limits their sum, however slowly the bytes arrive.
    # The exception can arise anywhere in the block: the connection is closed after it, whatever its state.
    def within(seconds, what, &block)
      Timeout.timeout(seconds, Expired, "#{what} within #{seconds.round(2)} s", &block)
    end

    def exchange(connection, request)
      within(@connect_timeout, "no connection") { connection.start } unless connection.started?
      body = String.new
      response = catch(:full) do
        connection.request(net_request(request)) do |answer|
          answer.read_body do |part|
            body << part
            throw :full, answer if body.bytesize > LONGEST_BODY
          end
        end
      end
      finish(connection) if body.bytesize > LONGEST_BODY
      check_length(response, body)
      Answer.new(status: response.code.to_i, headers: response.each_header.to_h, body: body.byteslice(0, LONGEST_BODY))
    end

    def net_request(request)
      # Without this header Net::HTTP would ask for compressed answers and unpack them, of whatever size.
      headers = { "Accept-Encoding" => "identity" }.merge(request.headers)
      type = Net::HTTP.const_get(request.verb.capitalize)
      type.new(request.uri.request_uri, headers).tap { |made| made.body = request.body }
    end

    # Net::HTTP takes a connection that ends too early for the end of the body.
    def check_length(response, body)
      return if !response.class.body_permitted? || response.chunked? || body.bytesize > LONGEST_BODY

      missing = response.content_length.to_i - body.bytesize
      raise EOFError, "the connection was lost within the answer" if missing.positive?
    end

    def failure(error, retryable:)
      Failure.new(message: "#{@uri.host}: #{error.message} (#{error.class})", retryable: retryable, cause: error)
    end
  end
end
