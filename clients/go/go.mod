module tidegate.example/client

go 1.22
