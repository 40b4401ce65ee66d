"""Asks our server with Python's Redis client, in both versions of the protocol; ends with an error if an answer is wrong.

Arguments: host, port, password ("" for none).
"""

import sys

import redis

host, port, password = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None


def expect(found, wanted):
    if found != wanted:
        raise SystemExit(f"expected {wanted!r}, found {found!r}")


for protocol in (2, 3):
    client = redis.Redis(
        host=host,
        port=port,
        password=password,
        protocol=protocol,
        client_name="py",
        decode_responses=True,
        socket_timeout=10,
    )
    expect(client.ping(), True)
    expect(client.echo("é"), "é")
    expect(client.client_getname(), "py")
    expect(client.info("server")["redis_version"], "7.0.0")
    expect(client.info("replication")["role"], "master")
    expect(client.command_count() > 10, True)

    key = f"py{protocol}"
    throttle = ("CL.THROTTLE", key, 2, 1, 10)
    expect(client.execute_command(*throttle), [0, 3, 2, -1, 10])
    # The default pipeline is a transaction, and some clients choose a database.
    pipeline = client.pipeline()
    pipeline.execute_command("CL.THROTTLE", f"multi{protocol}", 0, 1, 10)
    pipeline.execute_command("CL.THROTTLE", f"multi{protocol}", 0, 1, 10)
    expect(pipeline.execute(), [[0, 1, 0, -1, 10], [1, 1, 0, 10, 10]])
    other = redis.Redis(host=host, port=port, password=password, protocol=protocol, db=3)
    expect(other.execute_command("CL.THROTTLE", f"multi{protocol}", 0, 1, 10), [0, 1, 0, -1, 10])
    # Replies to a pipeline come in its order.
    pipeline = client.pipeline(transaction=False)
    for _ in range(3):
        pipeline.execute_command(*throttle)
    pipeline.execute_command("CL.THROTTLE", key, 2, 1, 10, 0)
    expect(
        pipeline.execute(),
        [[0, 3, 1, -1, 20], [0, 3, 0, -1, 30], [1, 3, 0, 10, 30], [0, 3, 0, -1, 30]],
    )

    allowed = client.execute_command("TG.CHECK", "api", "user", key, "path", "/upload")
    expect(allowed[:4], [1, 1, 0, None])
    expect(allowed[5:7], ["uploads", "store"])
    refused = client.execute_command("TG.CHECK", "api", "user", key, "path", "/upload")
    expect(refused[0], 0)
    expect(client.execute_command("TG.RENEW", allowed[7]), 1)
    expect(client.execute_command("TG.RELEASE", allowed[7]), 1)

    try:
        client.execute_command("CL.THROTTLE", key, 1, 1, 1, -1)
        raise SystemExit("a negative quantity was taken")
    except redis.ResponseError as error:
        expect(str(error), "quantity must not be negative")
    try:
        client.get(key)
        raise SystemExit("GET was answered")
    except redis.ResponseError as error:
        expect("unknown command 'GET'" in str(error), True)

    raw = redis.Redis(host=host, port=port, password=password, protocol=protocol)
    binary = bytes(range(256))
    expect(raw.execute_command("CL.THROTTLE", binary, 0, 1, 10)[0], protocol - 2)
    expect(raw.echo(binary), binary)
    client.close()
    raw.close()

if password:
    for wrong in ("", "wrong"):
        try:
            redis.Redis(host=host, port=port, password=wrong or None).ping()
            raise SystemExit("a wrong password was taken")
        except redis.AuthenticationError:
            pass

print("all answers are right")
